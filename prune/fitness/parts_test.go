package fitness

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/structure"
)

// TestPartsAreCut: what the upper rungs give for a formula of neurons, heads and layers are the losses of the smaller
// model that structure.Choose and a saver make of the dense one with the calibration data of the rung.
func TestPartsAreCut(t *testing.T) {
	s := shorter(subjectOf(t, "base", 2), 4, 48)
	formulas := map[structure.Kind]string{
		structure.Neurons: "expr:osum(W*sqrt(X))*sqrt(Ma) + gsum(W*G)", structure.Heads: "expr:zsn(ol2(W*G)) + zsn(Av)",
		structure.Blocks: "expr:Bi*gmean(W)",
	}
	for _, kind := range structure.Kinds() {
		shares := []float64{0.25, 0.5}
		if kind == structure.Heads { // two for each of keys and values
			shares = shares[1:]
		}
		var list []Setting
		for _, x := range shares {
			list = append(list, Setting{Sparsity: x})
		}
		j := judge(t, Options{Structure: kind, Settings: list, Windows: 2}, s)
		name := formulas[kind]
		sets := map[Rung]set{Full: {s.Calib, s.Search}, Select: {s.Calib, s.Select}, Test: {s.TestCalib, s.Test}}
		for rung, set := range sets {
			got := measure(t, j, rung, name)
			if got.Rejected != "" {
				t.Fatal(got.Rejected)
			}
			for k, drop := range shares {
				want := cutLosses(t, s, kind.Options(drop), name, set)
				if math.Abs(mean(want)-got.Values[k]) > 2e-5*got.Values[k] {
					t.Errorf("%s, rung %s, %g: %g, and %g of the smaller model", kind, rung, drop, got.Values[k],
						mean(want))
				}
			}
			if err := j.Answers(Task{j.ID(), rung, name}, got); err != nil {
				t.Error(err)
			}
		}

		// The lower rungs, and the model as it was behind all this.
		dense := measure(t, j, Few, Dense).Values[0]
		layers, few := measure(t, j, Layers, name), measure(t, j, Few, name)
		last := len(shares) - 1
		if !(layers.Values[0] > 0 && layers.Values[last] >= layers.Values[0]) || !(few.Values[last] > dense) {
			t.Errorf("%s: %v of what leaves the sample, losses %v, %g of the dense model", kind, layers.Values,
				few.Values, dense)
		}
		if again := measure(t, j, Few, Dense).Values[0]; again != dense {
			t.Errorf("%s: the dense model has %g, then %g", kind, dense, again)
		}

		for name, want := range map[string]error{
			"wanda": ErrTask, "expr:W*G": ErrTask, "expr:gsum(W)*W": ErrTask, "expr:Nobody": ErrTask,
		} {
			if _, err := j.Measure(t.Context(), Task{j.ID(), Few, name}); !errors.Is(err, want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := measure(t, j, Few, "expr:gsum(W) - gsum(W)"); got.Rejected != gp.ErrConstant.Error() {
			t.Errorf("%+v", got)
		}
	}
}

// cutLosses makes the smaller model by a formula and gives its losses.
func cutLosses(t *testing.T, s Subject, o structure.Options, formula string, set set) []float64 {
	t.Helper()
	m, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if o.Score != "" {
		o.Score = formula
	} else {
		o.By = formula
	}
	p, err := structure.Choose(t.Context(), m, set.calib, o)
	if err != nil {
		t.Fatal(err)
	}

	out := filepath.Join(t.TempDir(), "out")
	saver, err := m.NewSaver(out, lm.SaveOptions{Cut: p.Cut})
	if err != nil {
		t.Fatal(err)
	}
	if err := saver.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	small, err := lm.Load(t.Context(), out, m.Device(), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	v, err := losses(t.Context(), small, set.data.IDs)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestPartsAlike: the same bits for any number of threads and benches, and without gradients where no formula may read
// them.
func TestPartsAlike(t *testing.T) {
	var first []Measure
	for _, n := range [][2]int{{1, 1}, {3, 2}} {
		s := shorter(subjectOf(t, "base", n[0]), 4, 32)
		g := gp.PartsGrammar(structure.Neurons.Terminals()...).Without(gp.G)
		j := judge(t, Options{Structure: structure.Neurons, Symbols: g.Symbols, Windows: 2, Benches: n[1]}, s)
		var tasks []Task
		for _, f := range []string{"osum(W*sqrt(X))", "Ma", "zsn(gl2(W))*Av + gmax(W*csum(W))"} {
			for _, r := range []Rung{Layers, Few, Full, Test} {
				tasks = append(tasks, Task{j.ID(), r, prune.FormulaPrefix + f})
			}
		}
		got, err := j.All(t.Context(), tasks)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = got
		}
		if !reflect.DeepEqual(got, first) {
			t.Errorf("%d threads, %d benches: other figures", n[0], n[1])
		}
	}
}

// TestPartsLadder: qualities are relative to the kind's own reference, which is 1.
func TestPartsLadder(t *testing.T) {
	j := judge(t, Options{Structure: structure.Neurons, Windows: 2}, shorter(subjectOf(t, "base", 2), 4, 32))
	ref := prune.FormulaPrefix + structure.Neurons.Known()[0].Formula
	l, err := NewLadder(t.Context(), j.ID(), j.All, LadderOptions{Keep: 1, Reference: ref})
	if err != nil {
		t.Fatal(err)
	}
	e, err := gp.Parse("osum(W*sqrt(X))")
	if err != nil {
		t.Fatal(err)
	}
	if q, err := l.Evaluate(t.Context(), e); err != nil || math.Abs(q-1) > 1e-12 {
		t.Errorf("the reference is %g, %v", q, err)
	}
}

// TestPartsOptions: what is no kind, and patterns of weights.
func TestPartsOptions(t *testing.T) {
	s := subjectOf(t, "base", 1)
	for _, o := range []Options{
		{Structure: "words", Windows: 2},
		{Structure: structure.Neurons, Settings: []Setting{{Pattern: prune.Pattern{N: 2, M: 4}}}, Windows: 2},
		{Structure: structure.Heads, Settings: []Setting{{Sparsity: 0.01}}, Windows: 2},
		{Structure: structure.Blocks, Settings: []Setting{{Sparsity: 0.01}}, Windows: 2},
	} {
		j, err := NewJudge(context.Background(), []Subject{s}, o)
		if err == nil {
			t.Errorf("%+v is taken", o)
			_ = j.Close()
		} else if !errors.Is(err, ErrOptions) && !errors.Is(err, structure.ErrOptions) {
			t.Error(err)
		}
	}
}
