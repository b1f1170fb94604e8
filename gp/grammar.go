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

	if !g.has(W) {
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

// operators lists the symbols that are no terminals.
func (g *Grammar) operators() (list []Symbol) {
	for _, s := range g.Symbols {
		if s.Arity() > 0 {
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

// random builds a tree as the published generator does: operators above MinDepth, terminals at depth deepest,
// in between operators (full) or either with equal chance (grow).
func (g *Grammar) random(r *rng.Stream, full bool, deepest, depth int) *Expr {
	terminals := g.of(0)
	if depth >= deepest || depth >= g.MinDepth && !full && r.Chance(0.5) {
		return Leaf(terminals[r.Below(len(terminals))])
	}

	list := g.operators()
	e := &Expr{Sym: list[r.Below(len(list))]}
	e.Left = g.random(r, full, deepest, depth+1)
	if e.Sym.Arity() == 2 {
		e.Right = g.random(r, full, deepest, depth+1)
	}

	return e
}

// ramped builds tree i of a ramped half-and-half start: depths from 3 (or MinDepth) to InitDepth in turn, full
// and grown alternating.
func (g *Grammar) ramped(r *rng.Stream, i int) *Expr {
	low := min(max(3, g.MinDepth), g.InitDepth)
	deepest := low + i/2%(g.InitDepth-low+1)
	return g.random(r, i%2 == 0, deepest, 0)
}

// sibling draws another symbol of the same arity, or the same one if there is no other.
func (g *Grammar) sibling(r *rng.Stream, s Symbol) Symbol {
	list := slices.DeleteFunc(g.of(s.Arity()), func(o Symbol) bool { return o == s })
	if len(list) == 0 {
		return s
	}
	return list[r.Below(len(list))]
}
