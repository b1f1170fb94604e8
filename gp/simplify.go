package gp

// Simplification brings expressions that prune the same weights to one form, so that the search pays for each metric
// once (Pruner-Zero's Opposing Operation Simplification, arXiv:2406.02924, with more rules).
//
// A pruning metric matters only by the order of its scores, and an inner part of it only by what the operators above
// let through. So every subtree is rewritten under a freedom, which says what may change about its value: at the root,
// anything that keeps the order (ranked: exp a and a prune the same); under an operator that subtracts the minimum or
// the mean and divides by the spread (mms, zsn), a positive factor and a constant (linear); under one that passes a
// factor on (a product), a positive factor, if that is free above (scaled); otherwise nothing (exact). operandFreedom
// hands the freedom down, and rules ask for the one that they need.
//
// Rewriting goes from the leaves up and begins again after every rule, until none applies. It ends: each rule makes the
// tree smaller, or sorts the operands of a commuting operator, or trades an operator for one that no rule trades back.
//
// Invariant: under any comparison group (row, matrix, layer) the simplified expression drops the same weights as the
// original, as far as float32 told them apart. This is why exp(log a) stays inside a sum: log is guarded, and
// exp(ln(|a| + 0.001)) is not |a|.

// freedom says what may change about the value of a part of an expression without changing the order of the scores.
type freedom uint8

const (
	exact  freedom = iota // nothing
	scaled                // a positive constant factor
	linear                // a positive constant factor and an added constant
	ranked                // anything that keeps the order; at the root
)

// Rule is one rewriting of [Simplify].
type Rule struct {
	Name string
	// "value": every value stays; "order": the order of the scores stays, as far as float32 told them apart
	Keeps string
	apply func(e *Expr, c freedom) *Expr
}

// Rules lists the rewritings in the order in which they are tried. Those that keep the value do so exactly in
// float32, apart from the sign of zero. The original of one that keeps the order is a non-decreasing function
// of the replacement, in every position where it applies; where float32 saturates or rounds, the replacement
// tells apart what the original did not.
func Rules() []Rule { return append([]Rule(nil), rules...) }

const (
	keepsValue = "value"
	keepsOrder = "order"
)

var rules = []Rule{
	{"skp a → a", keepsValue, func(e *Expr, _ freedom) *Expr { return when(e.Sym == Skp, e.Left) }},
	{"pow a → sqr a", keepsValue, func(e *Expr, _ freedom) *Expr { return when(e.Sym == Pow, Unary(Sqr, e.Left)) }},
	{"a·a → sqr a", keepsValue, func(e *Expr, _ freedom) *Expr {
		return when(e.Sym == Mul && e.Left.Equal(e.Right), Unary(Sqr, e.Left))
	}},
	{"abs a → a, a ≥ 0", keepsValue, func(e *Expr, _ freedom) *Expr {
		return when(e.Sym == Abs && e.Left.NonNegative(), e.Left)
	}},
	{"neg neg a → a", keepsValue, func(e *Expr, _ freedom) *Expr {
		return when(e.Sym == Neg && e.Left.Sym == Neg, e.inner())
	}},
	{"f(neg a) → f(a), f(abs a) → f(a), f even", keepsValue, func(e *Expr, _ freedom) *Expr {
		return when(e.Sym.facts().even && (e.Left.Sym == Neg || e.Left.Sym == Abs), with(e, e.inner()))
	}},
	{"a / abs b → a / b, a / neg b → a / b", keepsValue, func(e *Expr, _ freedom) *Expr {
		if (e.Sym != Div && e.Sym != Pdiv) || (e.Right.Sym != Abs && e.Right.Sym != Neg) {
			return nil
		}
		return Binary(e.Sym, e.Left, e.Right.Left)
	}},
	{"neg a · neg b → a · b", keepsValue, func(e *Expr, _ freedom) *Expr {
		return when(e.Sym == Mul && e.Left.Sym == Neg && e.Right.Sym == Neg, Binary(Mul, e.inner(), e.Right.child()))
	}},
	{"a + neg b → a - b", keepsValue, func(e *Expr, _ freedom) *Expr {
		switch {
		case e.Sym == Add && e.Right.Sym == Neg:
			return Binary(Sub, e.Left, e.Right.Left)
		case e.Sym == Add && e.Left.Sym == Neg:
			return Binary(Sub, e.Right, e.Left.Left)
		}
		return nil
	}},
	{"a - neg b → a + b", keepsValue, func(e *Expr, _ freedom) *Expr {
		return when(e.Sym == Sub && e.Right.Sym == Neg, Binary(Add, e.Left, e.Right.child()))
	}},
	{"neg(a - b) → b - a", keepsValue, func(e *Expr, _ freedom) *Expr {
		return when(e.Sym == Neg && e.Left.Sym == Sub, Binary(Sub, e.Left.Right, e.inner()))
	}},
	{"min(a, a) → a, max(a, a) → a", keepsValue, func(e *Expr, _ freedom) *Expr {
		return when((e.Sym == Min || e.Sym == Max) && e.Left.Equal(e.Right), e.Left)
	}},
	{"b ∘ a → a ∘ b, ∘ commutes", keepsValue, func(e *Expr, _ freedom) *Expr {
		return when(e.Sym.facts().commutes && e.Right.compare(e.Left) < 0, Binary(e.Sym, e.Right, e.Left))
	}},
	{"mms a → a, zsn a → a under mms, zsn or at the root", keepsOrder, func(e *Expr, c freedom) *Expr {
		return when(e.Sym.facts().scale == affine && c >= linear, e.Left)
	}},
	{"a / b → a where a factor doesn't matter", keepsOrder, func(e *Expr, c freedom) *Expr {
		return when(e.Sym == Div && c >= scaled && e.Left.Shape() == e.Shape(), e.Left)
	}},
	{"f(a) → a at the root, f rising", keepsOrder, func(e *Expr, c freedom) *Expr {
		return when(c == ranked && e.Sym.facts().growth == rising, e.Left)
	}},
	{"f(a) → abs a at the root, f rising in |a|", keepsOrder, func(e *Expr, c freedom) *Expr {
		return when(c == ranked && e.Sym.facts().growth == evenly && e.Sym != Abs, Unary(Abs, e.Left))
	}},
	{"abs tanh a → abs a at the root", keepsOrder, func(e *Expr, c freedom) *Expr {
		return when(c == ranked && e.Sym == Abs && e.Left.Sym == Tanh, with(e, e.inner()))
	}},
}

// when returns e if ok.
func when(ok bool, e *Expr) *Expr {
	if ok {
		return e
	}
	return nil
}

// child is the first operand, nil for terminals and for nil.
func (e *Expr) child() *Expr {
	if e == nil {
		return nil
	}
	return e.Left
}

// inner is the first operand of the first operand.
func (e *Expr) inner() *Expr { return e.child().child() }

// with applies the operator of e to another operand.
func with(e, operand *Expr) *Expr { return Unary(e.Sym, operand) }

// Simplify returns the canonical form of an expression: operators that undo each other are collapsed (Opposing
// Operation Simplification), operands of commuting operators sorted, and whatever doesn't change the order of
// the scores removed, for every comparison group. Unlike the paper's pairs, all rules hold under the guards of
// the operators; exp(log a) inside a sum, for example, is |a| + 0.001 and stays.
func Simplify(e *Expr) *Expr { return simplify(e, ranked, nil) }

// simplify rewrites from the leaves up until no rule applies. fired, if there, is told which rule changed what.
func simplify(e *Expr, c freedom, fired func(rule int, from, to *Expr)) *Expr {
	for {
		e = simplifyOperands(e, c, fired)
		next := rewrite(e, c, fired)
		if next == nil {
			return e
		}
		e = next
	}
}

// rewrite applies the first rule that fits, or returns nil.
func rewrite(e *Expr, c freedom, fired func(rule int, from, to *Expr)) *Expr {
	if e.Left == nil {
		return nil
	}

	for i, r := range rules {
		if to := r.apply(e, c); to != nil {
			if fired != nil {
				fired(i, e, to)
			}
			return to
		}
	}

	return nil
}

func simplifyOperands(e *Expr, c freedom, fired func(rule int, from, to *Expr)) *Expr {
	if e.Left == nil {
		return e
	}

	inside := e.Sym.operandFreedom(c)
	l := simplify(e.Left, inside, fired)

	// A factor of either operand is one of a product; a quotient lets only its first operand be free.
	r := e.Right
	if r != nil {
		other := exact
		if e.Sym == Mul {
			other = inside
		}
		r = simplify(r, other, fired)
	}

	if l == e.Left && r == e.Right {
		return e
	}

	return &Expr{e.Sym, l, r}
}

// operandFreedom is what may change about the first operand.
func (s Symbol) operandFreedom(c freedom) freedom {
	switch f := s.facts(); {
	case s == Neg:
		return c
	case f.scale == affine:
		return linear
	case f.scale == homogenic && c >= scaled:
		return scaled
	}
	return exact
}
