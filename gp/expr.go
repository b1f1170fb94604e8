package gp

import (
	"cmp"
	"hash/fnv"
)

// Limits of expressions that come from outside; a [Grammar] sets tighter ones for a search.
const (
	MaxNodes = 1024
	MaxDepth = 64 // edges from the root to the deepest node
)

// Expr is a node of an expression and everything below it. Expressions are not changed after they are made, and may
// share parts.
type Expr struct {
	Sym         Symbol
	Left, Right *Expr // nil as the arity of Sym has it; unary operators use Left
}

// Leaf makes a terminal.
func Leaf(s Symbol) *Expr { return &Expr{Sym: s} }

// Unary applies an operator of one operand.
func Unary(s Symbol, x *Expr) *Expr { return &Expr{Sym: s, Left: x} }

// Binary applies an operator of two operands.
func Binary(s Symbol, x, y *Expr) *Expr { return &Expr{Sym: s, Left: x, Right: y} }

// Size is the number of nodes.
func (e *Expr) Size() int {
	if e == nil {
		return 0
	}
	return 1 + e.Left.Size() + e.Right.Size()
}

// Depth is the number of edges from the root to the deepest node.
func (e *Expr) Depth() int {
	if e == nil {
		return -1
	}
	return 1 + max(e.Left.Depth(), e.Right.Depth())
}

// Uses reports whether a symbol occurs.
func (e *Expr) Uses(s Symbol) bool {
	return e != nil && (e.Sym == s || e.Left.Uses(s) || e.Right.Uses(s))
}

// Equal reports whether two expressions are the same tree.
func (e *Expr) Equal(o *Expr) bool { return e.compare(o) == 0 }

// compare orders trees: by symbol, then by the operands from the left. A missing tree comes first.
func (e *Expr) compare(o *Expr) int {
	switch {
	case e == o:
		return 0
	case e == nil:
		return -1
	case o == nil:
		return 1
	}
	return cmp.Or(cmp.Compare(e.Sym, o.Sym), e.Left.compare(o.Left), e.Right.compare(o.Right))
}

// Hash is a fingerprint of the tree (FNV-1a of the names in pre-order); equal trees have equal hashes.
func (e *Expr) Hash() uint64 {
	h := fnv.New64a()
	e.walk(func(n *Expr) {
		h.Write([]byte(n.Sym.String()))
		h.Write([]byte{' '})
	})
	return h.Sum64()
}

// walk calls f for every node in pre-order.
func (e *Expr) walk(f func(*Expr)) {
	if e == nil {
		return
	}
	f(e)
	e.Left.walk(f)
	e.Right.walk(f)
}

// at returns node i in pre-order.
func (e *Expr) at(i int) *Expr {
	for {
		if i == 0 {
			return e
		}

		i--
		if n := e.Left.Size(); i < n {
			e = e.Left
		} else {
			i -= n
			e = e.Right
		}
	}
}

// replace returns a copy of e with node i in pre-order replaced; the other parts are shared.
func (e *Expr) replace(i int, by *Expr) *Expr {
	if i == 0 {
		return by
	}

	c := *e
	if n := e.Left.Size(); i-1 < n {
		c.Left = e.Left.replace(i-1, by)
	} else {
		c.Right = e.Right.replace(i-1-n, by)
	}

	return &c
}

// Shape is the shape of the value.
func (e *Expr) Shape() Shape {
	f := e.Sym.facts()
	switch f.arity {
	case 0:
		return f.shape
	case 1:
		shape := e.Left.Shape()
		switch {
		case f.reduces == 0:
			return shape
		case shape == Matrix:
			return f.reduces
		}
		return NoMeet // nothing is left to be reduced
	}
	return e.Left.Shape().join(e.Right.Shape())
}

// kind is Group for what gives values for parts, and Matrix for what gives them for weights.
func (e *Expr) kind() Shape {
	if e.Shape() == Group {
		return Group
	}
	return Matrix
}

// NonNegative reports whether the value provably has no negative element.
func (e *Expr) NonNegative() bool {
	switch e.Sym.facts().sign {
	case always:
		return true
	case ifAll:
		return e.Left.NonNegative() && (e.Right == nil || e.Right.NonNegative())
	case ifFirst:
		return e.Left.NonNegative()
	case ifAny:
		return e.Left.NonNegative() || e.Right.NonNegative()
	}

	return e.Sym == Mul && e.Left.Equal(e.Right)
}

// valid checks arities, symbols and limits, for trees built by hand.
func (e *Expr) valid() error {
	nodes := 0
	var check func(n *Expr, depth int) error
	check = func(n *Expr, depth int) error {
		// Counted on the way down: a cyclic tree built by hand ends at the limit instead of never.
		nodes++
		switch {
		case n == nil:
			return ErrSyntax
		case nodes > MaxNodes || depth > MaxDepth:
			return ErrTooLarge
		case !n.Sym.Valid():
			return ErrUnknown
		}

		arity := n.Sym.Arity()
		if (arity > 0) != (n.Left != nil) || (arity > 1) != (n.Right != nil) {
			return ErrSyntax
		}

		if arity > 0 {
			if err := check(n.Left, depth+1); err != nil {
				return err
			}
		}

		if arity > 1 {
			return check(n.Right, depth+1)
		}

		return nil
	}

	return check(e, 0)
}
