package gp

import (
	"slices"

	"github.com/modelcompress/compress/internal/rng"
)

// How children are made: two tournaments choose the parents, crossover puts a subtree of one in the place of a subtree
// of the other (probability Options.Crossover, Koza 1992), and mutation changes one place (Options.Mutation): a new
// subtree, another symbol in a node, or a subtree for the whole tree ("hoist", which keeps trees small). Compat does
// what the published code of Pruner-Zero does, quirks included: see node and mutate. Nothing is checked here: whether a
// child is legal and new decides search.candidate.

// tournament draws members with replacement; the best wins.
func (s *search) tournament(r *rng.Stream) *Expr {
	win := r.Below(len(s.population))
	for range s.o.Tournament - 1 {
		if c := r.Below(len(s.population)); s.beats(c, win) {
			win = c
		}
	}
	return s.population[win].Tree
}

// beats compares two members of the population.
func (s *search) beats(a, b int) bool {
	if s.o.Aim == Pareto {
		if s.layer[a] != s.layer[b] {
			return s.layer[a] < s.layer[b]
		}
		if s.spread[a] != s.spread[b] {
			return s.spread[a] > s.spread[b]
		}
	}
	return s.o.order(s.population[a], s.population[b]) < 0
}

// child makes one expression from the population. After some attempts that gave nothing new it changes more,
// and at last starts afresh.
func (s *search) child(r *rng.Stream, attempt int) (e *Expr, origin string) {
	if attempt >= freshAttempts {
		return s.g.ramped(r, r.Below(1<<16)), "random"
	}

	e = s.tournament(r)
	if r.Chance(s.o.Crossover) {
		e, origin = s.crossover(r, e, s.tournament(r)), "crossover"
	}

	// A further attempt that neither crosses nor mutates would give a parent again, which is not new.
	if r.Chance(s.o.Mutation) || origin == "" && attempt > 0 && s.o.Mutation > 0 {
		m, name := s.mutate(r, e)
		e = m
		if origin != "" {
			origin += "+"
		}
		origin += name
	}

	return e, origin
}

const (
	freshAttempts = 20 // from then on a child is a random tree
	maxAttempts   = 40 // then the place stays empty
)

// node draws a node uniformly or, in compatible mode, as the published code's scan does: a start uniform in 1 to size
// counts down before every node and stops at 1 or less, which gives the root two chances and the last node none.
func (s *search) node(r *rng.Stream, e *Expr) int {
	n := r.Below(e.Size())
	if s.o.Compat {
		return max(0, n-1)
	}
	return n
}

// crossover puts a part of b in the place of a part of a that gives values for the same: weights, or whole parts of a
// model. Where b has nothing of that kind, a stays.
func (s *search) crossover(r *rng.Stream, a, b *Expr) *Expr {
	at := s.node(r, a)
	if from, ok := s.nodeLike(r, b, a.at(at)); ok {
		return a.replace(at, b.at(from))
	}
	return a
}

// nodeLike draws a node among those that give values for the same as another expression does.
func (s *search) nodeLike(r *rng.Stream, e, like *Expr) (at int, ok bool) {
	if !s.g.structural() {
		return s.node(r, e), true
	}

	var list []int
	for i := range e.Size() {
		if e.at(i).kind() == like.kind() {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		return 0, false
	}

	return list[r.Below(len(list))], true
}

// mutate changes one place: a new subtree, another symbol of the same arity, or a part of the expression for the whole.
func (s *search) mutate(r *rng.Stream, e *Expr) (*Expr, string) {
	kind := r.Below(3)
	if s.o.Compat {
		kind = 1
	}

	at := s.node(r, e)
	old := e.at(at)
	of := old.kind()
	switch kind {
	case 0:
		deepest := min(2, s.g.InitDepth)
		shallow := s.g
		shallow.MinDepth = 0
		return e.replace(at, shallow.random(r, of, false, deepest, 0)), "subtree"
	case 1:
		c := *old
		c.Sym = s.g.sibling(r, c.Sym, of)
		return e.replace(at, &c), "node"
	}

	if s.g.structural() && of != Group {
		at, _ = s.nodeLike(r, e, e) // what scores weights is no formula of parts
	}

	return e.at(at), "hoist"
}

// Seeds lists known metrics that the grammar can express: Wanda, RIA, the metrics published with Pruner-Zero,
// and the power family |W|^a·G^b·X^c with a of ½, 1, 2 and b, c of 0, ¼, ½, 1, 2; of whole parts, Wanda-sp, Minitron,
// LLM-Pruner's first order, FLAP, block influence, and sums, means, maxima and norms of metrics of weights.
func Seeds(g Grammar) []*Expr {
	g = g.withDefaults()
	var list []*Expr
	add := func(e *Expr) {
		e = Simplify(e)
		if g.check(e) == nil && !slices.ContainsFunc(list, e.Equal) {
			list = append(list, e)
		}
	}

	if g.structural() {
		for _, text := range knownParts() {
			if e, err := Parse(text); err == nil {
				add(e)
			}
		}
		return list
	}

	for _, text := range knownMetrics {
		// A metric that needs what the grammar leaves out is no fault: it just is no seed.
		if e, err := Parse(text); err == nil {
			add(e)
		}
	}

	for _, a := range []int{-1, 0, 1} {
		// Exponents are powers of two of repeated squares and roots: -2 is ¼, -1 is ½, 0 is 1, 1 is 2.
		for _, b := range []int{none, -2, -1, 0, 1} {
			for _, c := range []int{none, -2, -1, 0, 1} {
				add(product(power(W, a), power(G, b), power(X, c)))
			}
		}
	}

	return list
}

var knownMetrics = []string{
	// Wanda
	"W*sqrt(X)",
	// published with Pruner-Zero
	"abs(W*W)*mms(G)",
	// from its main figure
	"(W*W)*sqrt(G)",
	"log(mms(W)*mms(W)) + G*W",
	// RIA
	"(pdiv(W, Wc1) + pdiv(W, Wr1))*sqrt(sqrt(X))",
	// SparseGPT's criterion, without its updates
	"pdiv(sqr(W), Hi)",
	// GBLM
	"W*sqrt(X) + W*G",
}

// knownParts are the known metrics of whole parts.
func knownParts() []string {
	list := []string{
		// Minitron
		"Ma",
		// FLAP: the variance of what leaves times the squared norm of what it flows through
		"osum(sqr(W)*Xv)",
		// block influence, and the size of what a layer adds
		"Bi", "Sd", "pdiv(Sd, Sx)",
		"A", "Av",
		"Ma*ol2(W)", "Ma*gl2(W)", "sqrt(A)*il2(W)*ol2(W)", "isum(W*sqrt(X))*osum(W*sqrt(X))",
		"zsn(gsum(W*G)) + zsn(Ma)", "zsn(gsum(W*G)) + zsn(osum(W*sqrt(X)))", "gsum(W*G)*Ma",
	}

	// Wanda-sp is the first of the second, LLM-Pruner's first order that of the third.
	weights := []string{"W", "W*sqrt(X)", "W*G", "W*sqrt(X) + W*G", "abs(W*W)*mms(G)"}
	for _, over := range []string{"osum", "gsum", "ol2", "gl2", "omax", "gmax", "gmean"} {
		for _, w := range weights {
			list = append(list, over+"("+w+")")
		}
	}

	return list
}

// none is the exponent that leaves a factor out.
const none = -99

// power is s to the power of 2^n.
func power(s Symbol, n int) *Expr {
	if n == none {
		return nil
	}

	e := Leaf(s)
	for ; n < 0; n++ {
		e = Unary(Sqrt, e)
	}
	for ; n > 0; n-- {
		e = Unary(Sqr, e)
	}

	return e
}

func product(factors ...*Expr) (e *Expr) {
	for _, f := range factors {
		switch {
		case f == nil:
		case e == nil:
			e = f
		default:
			e = Binary(Mul, e, f)
		}
	}

	return e
}
