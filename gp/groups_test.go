package gp

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"pgregory.net/rapid"
)

// ofNeurons is the grammar of formulas of neurons.
func ofNeurons() Grammar { return PartsGrammar(A, Am, Av, Ma) }

// anyParts draws expressions of the grammar of whole parts, and expressions that mix parts and weights at will.
func anyParts(t *rapid.T) *Expr {
	g := ofNeurons()
	r := rng.NewStream(rapid.Uint64().Draw(t, "tree"))
	e := g.random(r, Group, rapid.Bool().Draw(t, "full"), rapid.IntRange(0, 5).Draw(t, "depth"), 0)
	if rapid.Bool().Draw(t, "mixed") {
		e = e.replace(r.Below(e.Size()), g.random(r, Matrix, false, 2, 0))
	}
	return e
}

// typed says by itself, without [Expr.Shape], whether an expression gives one value for every part, and whether one for
// every weight.
func typed(e *Expr) (parts, weights bool) {
	f := e.Sym.facts()
	if f.arity == 0 {
		return f.shape == Group, f.shape != Group
	}
	p, w := typed(e.Left)
	if f.reduces != 0 {
		full := w && e.Left.Shape() == Matrix
		return full && f.reduces == Group, full && f.reduces != Group
	}
	if e.Right == nil {
		return p, w
	}
	p2, w2 := typed(e.Right)
	return p && p2, w && w2
}

// TestPartsAreTyped: trees that the grammar draws for parts have no weight above a reduction and no part below one, and
// whatever they are made of, shape, compiler and tally agree about which expressions score parts.
func TestPartsAreTyped(t *testing.T) {
	g := ofNeurons()
	mlp := probeMLPs()[0]
	scored := 0
	rapid.Check(t, func(t *rapid.T) {
		e := anyParts(t)
		parts, _ := typed(e)
		if (e.Shape() == Group) != parts {
			t.Fatalf("%s: shape %s, but typed %t", e, e.Shape(), parts)
		}
		if back, err := Parse(e.String()); err != nil || !back.Equal(e) {
			t.Fatalf("%s comes back as %s, %v", e, back, err)
		}

		p, err := CompileParts(e)
		if !parts {
			if !errors.Is(err, ErrParts) {
				t.Fatalf("%s compiles: %v", e, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Compile(e); !errors.Is(err, ErrShape) {
			t.Fatalf("%s scores weights: %v", e, err)
		}

		tally := p.Tally(probeNeurons, 1)
		for _, m := range mlp.members {
			if err = tally.Add(m); err != nil && !errors.Is(err, ErrNonFinite) {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
		}
		scores, err := tally.Scores(func(s Symbol) []float64 { return mlp.terminals[s] })
		switch {
		case errors.Is(err, ErrNonFinite):
		case err != nil:
			t.Fatal(err)
		case len(scores) != probeNeurons:
			t.Fatalf("%s: %d scores", e, len(scores))
		default:
			scored++
		}

		// The canonical form is a formula of parts too, and orders them alike where neither rounds.
		if s := Simplify(e); s.Shape() != Group {
			t.Fatalf("%s becomes %s of shape %s", e, s, s.Shape())
		}
	})
	if scored < 10 {
		t.Errorf("%d formulas gave scores", scored)
	}

	for i := range 500 { // as a search draws them: reductions only of matrices may still be missing, types never are
		e := g.ramped(rng.NewStream(5, i), i)
		above(t, e, true)
	}
}

// above checks that parts are above reductions and weights below.
func above(t *testing.T, e *Expr, parts bool) {
	t.Helper()
	f := e.Sym.facts()
	switch {
	case f.arity == 0:
		if (f.shape == Group) != parts {
			t.Fatalf("terminal %s on the wrong side of a reduction", e.Sym)
		}
		return
	case f.reduces == Group && !parts:
		t.Fatalf("reduction %s below another", e.Sym)
	case f.reduces == Group:
		parts = false
	case f.reduces != 0 && parts:
		t.Fatalf("%s above a reduction to parts", e.Sym)
	}
	above(t, e.Left, parts)
	if e.Right != nil {
		above(t, e.Right, parts)
	}
}

// TestPartsBreed: crossover and mutation of members of a population, which score parts, keep types.
func TestPartsBreed(t *testing.T) {
	g := ofNeurons()
	s := &search{g: g, o: Options{}.withDefaults()}
	bred := 0
	for i := range 4000 {
		r := rng.NewStream(11, i)
		a, b := g.ramped(r, i), g.ramped(r, i+1)
		if a.Shape() != Group || b.Shape() != Group {
			continue
		}
		bred++
		above(t, s.crossover(r, a, b), true)
		m, _ := s.mutate(r, a)
		above(t, m, true)
	}
	if bred < 100 {
		t.Errorf("%d pairs of parents", bred)
	}
}

// TestTally: all reductions of an MLP as plain loops.
func TestTally(t *testing.T) {
	mlp := newProbeMLP(rng.NewStream(4))
	all := func(j int, reads, gives bool) (list []float64) {
		for _, m := range mlp.members {
			if m.Out && gives {
				for i := range m.W.Rows {
					list = append(list, math.Abs(float64(m.W.RowF32(i)[j]))*math.Sqrt(float64(m.X[j])))
				}
			}
			if !m.Out && reads {
				for k, v := range m.W.RowF32(j) {
					list = append(list, math.Abs(float64(v))*math.Sqrt(float64(m.X[k])))
				}
			}
		}
		return list
	}
	folds := map[string]func(list []float64) float64{
		"sum": func(list []float64) (v float64) {
			for _, x := range list {
				v += x
			}
			return v
		},
		"mean": func(list []float64) (v float64) {
			for _, x := range list {
				v += x / float64(len(list))
			}
			return v
		},
		"max": slices.Max[[]float64],
		"l2": func(list []float64) (v float64) {
			for _, x := range list {
				v += x * x
			}
			return math.Sqrt(v)
		},
	}
	sides := []struct {
		name         string
		reads, gives bool
	}{{"g", true, true}, {"i", true, false}, {"o", false, true}}
	for name, f := range folds {
		for _, side := range sides {
			e := mustParse(t, side.name+name+"(W*sqrt(X))")
			for j, got := range tally(t, e, mlp) {
				if want := f(all(j, side.reads, side.gives)); math.Abs(got-want) > 2e-6*want {
					t.Fatalf("%s of neuron %d: %g, want %g", e, j, got, want)
				}
			}
		}
	}

	// Above a reduction, operators look at all neurons.
	sums := tally(t, mustParse(t, "osum(W)"), mlp)
	least, most := slices.Min(sums), slices.Max(sums)
	for j, got := range tally(t, mustParse(t, "mms(osum(W))*Ma"), mlp) {
		want := (sums[j] - least) / (most - least) * mlp.terminals[Ma][j]
		if math.Abs(got-want) > 1e-12*math.Abs(want) {
			t.Fatalf("neuron %d: %g, want %g", j, got, want)
		}
	}

	// Sums over rows and columns below one: a share of a row's sum adds up to 1.
	for j, got := range tally(t, mustParse(t, "isum(pdiv(W, rsum(W)))"), mlp) {
		if math.Abs(got-2) > 1e-4 {
			t.Fatalf("neuron %d: shares of two rows add up to %g", j, got)
		}
	}
	known := tally(t, mustParse(t, "gsum(W*Wr2 + Wc2*W)"), mlp)
	if !slices.Equal(tally(t, mustParse(t, "gsum(W*rl2(W) + cl2(W)*W)"), mlp), known) {
		t.Error("norms of rows and columns are not those of the terminals")
	}
}

func tally(t *testing.T, e *Expr, mlp probeMLP) []float64 {
	t.Helper()
	p, err := CompileParts(e)
	if err != nil {
		t.Fatal(err)
	}
	sums := p.Tally(probeNeurons, 3)
	for _, m := range mlp.members {
		if err := sums.Add(m); err != nil {
			t.Fatal(err)
		}
	}
	v, err := sums.Scores(func(s Symbol) []float64 { return mlp.terminals[s] })
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestTallyRefuses: owners that do not fit, terminals that are missing, and matrices without statistics.
func TestTallyRefuses(t *testing.T) {
	mlp := probeMLPs()[0]
	p, err := CompileParts(mustParse(t, "osum(W*sqrt(X)) + Bi"))
	if err != nil {
		t.Fatal(err)
	}
	m := mlp.members[2]
	m.Owner = m.Owner[1:]
	if err := p.Tally(probeNeurons, 1).Add(m); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
	m = mlp.members[2]
	m.X = nil
	if err := p.Tally(probeNeurons, 1).Add(m); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
	m.Blind = true
	if err := p.Tally(probeNeurons, 1).Add(m); err != nil {
		t.Error(err)
	}
	if _, err := p.Tally(probeNeurons, 1).Scores(func(Symbol) []float64 { return nil }); !errors.Is(err, ErrInput) {
		t.Error(err)
	}

	for text, want := range map[string]error{
		"gsum(W)*X": ErrParts, "gsum(gsum(W))": ErrParts, "gsum(Ma)": ErrParts, "W*G": ErrParts, "gsum(X)": ErrParts,
		"gsum(rsum(W))": ErrParts, "Ma*gsum(rsum(X)*W)": ErrParts,
	} {
		if _, err := CompileParts(mustParse(t, text)); !errors.Is(err, want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Compile(mustParse(t, "W*rsum(X)")); !errors.Is(err, ErrShape) {
		t.Error(err)
	}
	dst := kernels.MatOf(kernels.NewHost(kernels.F32, probeNeurons*probeWidth), probeNeurons, probeWidth)
	q, err := Compile(mustParse(t, "W*csum(W*G)"))
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Eval(dst, mlp.members[0].Inputs, Exec{}); err != nil {
		t.Error(err)
	}
}

// TestSearchOfParts: every seed is legal, the search finds what it is rewarded for, and workers and interruptions do
// not change it.
func TestSearchOfParts(t *testing.T) {
	g := ofNeurons()
	seeds := Seeds(g)
	if len(seeds) < 30 {
		t.Fatalf("%d seeds", len(seeds))
	}

	mlp := newProbeMLP(rng.NewStream(9))
	want := tally(t, mustParse(t, "sqrt(Ma)*omax(W*G)"), mlp)
	fit := Func(func(_ context.Context, e *Expr) (float64, error) {
		p, err := CompileParts(e)
		if err != nil {
			return 0, err
		}
		sums := p.Tally(probeNeurons, 1)
		for _, m := range mlp.members {
			if err := sums.Add(m); err != nil {
				return math.NaN(), nil
			}
		}
		v, err := sums.Scores(func(s Symbol) []float64 { return mlp.terminals[s] })
		if err != nil {
			return math.NaN(), nil
		}
		return misranked(v, want), nil
	})

	var first string
	journal := filepath.Join(t.TempDir(), "journal")
	for _, workers := range []int{1, 3} {
		o := Options{Seed: 3, Population: 40, Generations: 6, Seeds: seeds, Workers: workers}
		if workers == 1 {
			o.Journal = journal
		}
		r, err := Search(t.Context(), g, fit, o)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(text)
			if r.Best.Quality > 0.2*misranked(mlp.terminals[Ma], want) {
				t.Errorf("found only %s (%g)", r.Best.Formula, r.Best.Quality)
			}
		}
		if string(text) != first {
			t.Errorf("%d workers find something else", workers)
		}
	}

	// Half of the journal, and the search goes on to the same.
	whole, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(journal, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{Seed: 3, Population: 40, Generations: 6, Seeds: seeds, Journal: journal, Resume: true}
	if _, err := Search(t.Context(), g, fit, o); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(journal); err != nil || string(again) != string(whole) {
		t.Errorf("the journal of the resumed search differs: %v", err)
	}
}

// misranked counts pairs in the other order.
func misranked(a, b []float64) (n float64) {
	for i := range a {
		for j := range i {
			if (a[i] < a[j]) != (b[i] < b[j]) {
				n++
			}
		}
	}
	return n / float64(len(a))
}
