package gp

import "fmt"

// check finds what keeps a canonical expression from being a metric, without evaluating it.
func (g *Grammar) check(e *Expr) error {
	if err := g.allows(e); err != nil {
		return err
	}

	parts := g.structural()
	switch {
	case parts && e.Shape() != Group:
		return ErrParts
	case !parts && !usesWeight(e):
		return ErrNoWeight
	case !g.AllowOnlyW && !usesOther(e):
		return ErrOnlyW
	case !parts && e.Shape() != Matrix:
		return ErrShape
	case e.Sym == Neg:
		return ErrInverted
	case cancels(e):
		return fmt.Errorf("%w: a part is subtracted from itself", ErrConstant)
	}

	return nil
}

// allows checks the caps and the symbols.
func (g *Grammar) allows(e *Expr) error {
	if n, d := e.Size(), e.Depth(); n > g.MaxSize || d > g.MaxDepth {
		return fmt.Errorf("%w: %d nodes and %d levels, at most %d and %d", ErrTooLarge, n, d, g.MaxSize, g.MaxDepth)
	}

	var err error
	e.walk(func(n *Expr) {
		if !g.has(n.Sym) && err == nil {
			err = fmt.Errorf("%w: %s", ErrForbidden, n.Sym)
		}
	})
	return err
}

func usesWeight(e *Expr) bool { return e.Uses(W) }

// usesOther reports whether a terminal occurs that does not come from W.
func usesOther(e *Expr) bool {
	for _, s := range []Symbol{G, X, Xm, Xv, H, Hi, A, Am, Av, Ma, Bi, Sx, Sy, Sd} {
		if e.Uses(s) {
			return true
		}
	}
	return false
}

// cancels reports whether some part is a - a.
func cancels(e *Expr) (found bool) {
	e.walk(func(n *Expr) { found = found || n.Sym == Sub && n.Left.Equal(n.Right) })
	return found
}

// Check simplifies an expression, checks it against the grammar and tries it on the probe, which may be nil. It
// returns the canonical form, and one of the named errors if it is no usable metric: [ErrForbidden],
// [ErrTooLarge], [ErrNoWeight], [ErrOnlyW], [ErrShape], [ErrParts], [ErrInverted], [ErrConstant] or [ErrNonFinite].
func (g Grammar) Check(e *Expr, probe *Probe) (*Expr, error) {
	if err := e.valid(); err != nil {
		return nil, err
	}

	canonical := Simplify(e)
	if err := g.check(canonical); err != nil {
		return canonical, fmt.Errorf("%s: %w", canonical, err)
	}
	if probe == nil {
		return canonical, nil
	}

	_, err := probe.Fingerprint(canonical)
	return canonical, err
}
