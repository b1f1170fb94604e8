package gp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/rng"
)

// Grammar says which expressions a search may build.
type Grammar struct {
	Symbols    []Symbol `json:"symbols"`      // terminals and operators, all equally likely
	MinDepth   int      `json:"min_depth"`    // levels of a random tree that are operators; default 2
	InitDepth  int      `json:"init_depth"`   // deepest random tree; default 4
	MaxDepth   int      `json:"max_depth"`    // of canonical expressions; default 6
	MaxSize    int      `json:"max_size"`     // nodes of canonical expressions; default 31
	AllowOnlyW bool     `json:"allow_only_w"` // accept metrics of the weights alone
}

// ErrGrammar says that a grammar can't build a legal expression.
var ErrGrammar = failure.Misuse("unusable grammar", "")

// PaperGrammar is the published search space: W, G, X and 15 operators, depth 2 to 4 at the start.
func PaperGrammar() Grammar { return Grammar{Symbols: PaperSymbols()}.withDefaults() }

// FullGrammar adds norms of W, further statistics of the inputs, protected division, normalisers, min and max.
// Terminals that the fitness has no statistics for should be left out with [Grammar.Without].
func FullGrammar() Grammar { return Grammar{Symbols: Symbols()}.withDefaults() }

// PartsGrammar is that of formulas which score whole parts: the published space for single weights, the mean and the
// variance of inputs, reductions, and terminals of the parts.
func PartsGrammar(terminals ...Symbol) Grammar {
	return Grammar{Symbols: slices.Concat(PaperSymbols(), []Symbol{Xm, Xv}, Reductions(), terminals)}.withDefaults()
}

// structural reports whether expressions score whole parts: there is a terminal of parts, or a reduction to them.
func (g *Grammar) structural() bool {
	return slices.ContainsFunc(g.Symbols, func(s Symbol) bool {
		f := s.facts()
		return f.shape == Group || f.reduces == Group
	})
}

// Without returns the grammar less some symbols.
func (g Grammar) Without(list ...Symbol) Grammar {
	g.Symbols = slices.DeleteFunc(slices.Clone(g.Symbols), func(s Symbol) bool { return slices.Contains(list, s) })
	return g
}

func (g Grammar) withDefaults() Grammar {
	for _, d := range []struct {
		p *int
		v int
	}{{&g.MinDepth, 2}, {&g.InitDepth, 4}, {&g.MaxDepth, 6}, {&g.MaxSize, 31}} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}

	if len(g.Symbols) == 0 {
		g.Symbols = PaperSymbols()
	}

	return g
}

// Validate returns every fault.
func (g Grammar) Validate() error {
	g = g.withDefaults()
	var faults []error
	add := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrGrammar}, args...)...))
	}

	for i, s := range g.Symbols {
		if !s.Valid() {
			add("unknown symbol %d", s)
		} else if slices.Contains(g.Symbols[:i], s) {
			add("%s twice", s)
		}
	}

	if !g.has(W) && len(g.terminals(Group)) == 0 {
		add("no W among the terminals")
	}
	if len(g.of(1))+len(g.of(2)) == 0 {
		add("no operators")
	}

	// A metric of the weight alone is magnitude under another name: it has to be asked for.
	if len(g.of(2)) == 0 && !g.AllowOnlyW {
		add("no operator joins W with another terminal")
	}
	if g.MinDepth < 1 || g.MinDepth > g.InitDepth || g.InitDepth > MaxDepth {
		add("random trees of depth %d to %d", g.MinDepth, g.InitDepth)
	}
	if g.MaxDepth < 1 || g.MaxDepth > MaxDepth {
		add("depth at most %d, not within 1 and %d", g.MaxDepth, MaxDepth)
	}
	if g.MaxSize < 2 || g.MaxSize > MaxNodes {
		add("size at most %d, not within 2 and %d", g.MaxSize, MaxNodes)
	}

	return failure.Join(faults...)
}

func (g *Grammar) has(s Symbol) bool { return slices.Contains(g.Symbols, s) }

// of lists the symbols of an arity.
func (g *Grammar) of(arity int) (list []Symbol) {
	for _, s := range g.Symbols {
		if s.Arity() == arity {
			list = append(list, s)
		}
	}
	return list
}

// terminals lists those that give a value for every part, or for weights.
func (g *Grammar) terminals(kind Shape) (list []Symbol) {
	for _, s := range g.of(0) {
		if (s.TerminalShape() == Group) == (kind == Group) {
			list = append(list, s)
		}
	}
	return list
}

// operators lists the symbols that are no terminals and may give a value for every part, or for weights.
func (g *Grammar) operators(kind Shape) (list []Symbol) {
	for _, s := range g.Symbols {
		to := s.facts().reduces
		if s.Arity() > 0 && (to == 0 || (to == Group) == (kind == Group)) {
			list = append(list, s)
		}
	}
	return list
}

// Hash identifies the grammar: SHA-256 of its contents, in hex.
func (g Grammar) Hash() string {
	g = g.withDefaults()
	var names []string
	for _, s := range g.Symbols {
		names = append(names, s.String())
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d %d %d %t", strings.Join(names, " "), g.MinDepth, g.InitDepth,
		g.MaxDepth, g.MaxSize, g.AllowOnlyW))
	return hex.EncodeToString(sum[:])
}

// kind is what the grammar's expressions give values for.
func (g *Grammar) kind() Shape {
	if g.structural() {
		return Group
	}
	return Matrix
}

// random builds a tree as the published generator does: operators above MinDepth, terminals at depth deepest,
// in between operators (full) or either with equal chance (grow). Below a reduction to parts it is one of weights.
func (g *Grammar) random(r *rng.Stream, kind Shape, full bool, deepest, depth int) *Expr {
	terminals := g.terminals(kind)
	list := g.operators(kind)
	if len(terminals) > 0 && (depth >= deepest || depth >= g.MinDepth && !full && r.Chance(0.5)) {
		return Leaf(terminals[r.Below(len(terminals))])
	}
	if len(terminals) == 0 && depth >= deepest { // a value of parts has to come from weights, one level deeper
		list = slices.DeleteFunc(list, func(s Symbol) bool { return s.facts().reduces != Group })
	}

	e := &Expr{Sym: list[r.Below(len(list))]}
	if e.Sym.facts().reduces == Group {
		kind = Matrix
	}
	e.Left = g.random(r, kind, full, deepest, depth+1)
	if e.Sym.Arity() == 2 {
		e.Right = g.random(r, kind, full, deepest, depth+1)
	}

	return e
}

// ramped builds tree i of a ramped half-and-half start: depths from 3 (or MinDepth) to InitDepth in turn, full
// and grown alternating.
func (g *Grammar) ramped(r *rng.Stream, i int) *Expr {
	low := min(max(3, g.MinDepth), g.InitDepth)
	deepest := low + i/2%(g.InitDepth-low+1)
	return g.random(r, g.kind(), i%2 == 0, deepest, 0)
}

// sibling draws another symbol of the same arity that takes and gives the same, or the same one if there is no other.
func (g *Grammar) sibling(r *rng.Stream, s Symbol, kind Shape) Symbol {
	own := s.facts()
	list := slices.DeleteFunc(slices.Concat(g.terminals(kind), g.operators(kind)), func(o Symbol) bool {
		f := o.facts()
		return o == s || f.arity != own.arity || (f.reduces == Group) != (own.reduces == Group)
	})
	if len(list) == 0 {
		return s
	}
	return list[r.Below(len(list))]
}
