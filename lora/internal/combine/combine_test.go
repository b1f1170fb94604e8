package combine_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/combine"
)

// drawn makes an adapter of a rank for two matrices of a made-up base, the second only where wide is set.
func drawn(t *rapid.T, name string, rank int, wide bool) combine.Named {
	c := adapter.Config{
		Kind: adapter.LoRA, Rank: rank, Alpha: float64(rank),
		Targets: adapter.Match{Names: []string{"q_proj"}},
	}
	a := &adapter.Adapter{Config: c}
	alpha := rapid.Float64Range(0.25, 4).Draw(t, name+".alpha")
	add := func(path string, in, out int) {
		m := adapter.Module{Path: path, Tensor: path + ".weight", In: in, Out: out}
		f := adapter.Plain{A: adapter.NewParam("A", rank, in), B: adapter.NewParam("B", out, rank)}
		for _, p := range []*adapter.Param{f.A, f.B} {
			for i := range p.Data() {
				p.Data()[i] = float32(rapid.IntRange(-8, 8).Draw(t, "x")) / 8
			}
		}
		a.Low = append(a.Low,
			&adapter.Low{Module: m, Rank: rank, Alpha: alpha, Scale: alpha / float64(rank), Factors: f})
	}

	add("model.layers.0.q_proj", 6, 5)

	if wide {
		a.Config.Targets.Names = append(a.Config.Targets.Names, "v_proj")
		add("model.layers.0.v_proj", 4, 7)
	}

	return combine.Named{Name: name, Adapter: a}
}

// weightedSum is Σ w·s·B·A of a module.
func weightedSum(list []combine.Named, weights []float64, path string) []float64 {
	var sum []float64
	for i, n := range list {
		l := n.Adapter.Find(path)
		if l == nil {
			continue
		}

		d := delta(l)
		if sum == nil {
			sum = make([]float64, len(d))
		}
		for k, v := range d {
			sum[k] += weights[i] * v
		}
	}

	return sum
}

func near(a, b []float64, limit float64) bool {
	for i, v := range a {
		if math.Abs(v-b[i]) > limit {
			return false
		}
	}
	return len(a) == len(b)
}

// TestExact: cat is the weighted sum of the changes, and so is svd of a rank that no sum exceeds, to the
// rounding of float32.
func TestExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := []combine.Named{
			drawn(t, "a", 2, true), drawn(t, "b", rapid.IntRange(1, 3).Draw(t, "rank"), false),
			drawn(t, "c", 2, rapid.Bool().Draw(t, "wide")),
		}
		weights := []float64{rapid.Float64Range(-2, 2).Draw(t, "w"), 0.5, -1}
		for _, o := range []combine.Options{{Method: "cat"}, {Method: "svd", Rank: 7}} {
			o.Weights = weights
			got, err := combine.Run(t.Context(), list, o)
			if err != nil {
				t.Fatal(err)
			}

			for _, l := range got.Low {
				if want := weightedSum(list, weights, l.Module.Path); !near(delta(l), want, 1e-5) {
					t.Fatalf("%s of %s: %v, want %v", o.Method, l.Module.Path, delta(l), want)
				}
			}
		}
	})
}

// TestIdentity: one adapter with weight 1 comes back as it is, whatever the method; with another weight its
// change is multiplied.
func TestIdentity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawn(t, "a", rapid.IntRange(1, 4).Draw(t, "rank"), true)
		a.Adapter.Config.DoRA = rapid.Bool().Draw(t, "dora")

		method := rapid.SampledFrom(combine.Methods()).Draw(t, "method")
		density := 0.0
		if slices.Contains([]string{
			"ties", "dare_linear", "dare_ties", "magnitude_prune", "ties_svd",
			"dare_linear_svd", "dare_ties_svd", "magnitude_prune_svd",
			"ties_core", "dare_linear_core", "dare_ties_core", "ties_knots", "dare_linear_knots", "dare_ties_knots",
		}, method) {
			density = 0.3
		}

		got, err := combine.Run(t.Context(), []combine.Named{a}, combine.Options{Method: method, Density: density})
		if err != nil || got.Adapter != a.Adapter || !got.Exact {
			t.Fatalf("%v, %+v", err, got)
		}

		a.Adapter.Config.DoRA = false
		w := rapid.Float64Range(-2, 2).Draw(t, "w")
		if got, err = combine.Run(t.Context(), []combine.Named{a},
			combine.Options{Method: "cat", Weights: []float64{w}}); err != nil {
			t.Fatal(err)
		}

		for _, l := range got.Low {
			if !near(delta(l), weightedSum([]combine.Named{a}, []float64{w}, l.Module.Path), 1e-5) {
				t.Fatalf("weight %g of %s", w, l.Module.Path)
			}
		}
	})
}

// TestDensityOne: pruning that keeps everything is no pruning.
func TestDensityOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := []combine.Named{drawn(t, "a", 2, true), drawn(t, "b", 2, true)}
		for _, pair := range [][2]string{
			{"magnitude_prune", "linear"},
			{"dare_linear", "linear"},
			{"magnitude_prune_svd", "svd"},
			{"dare_ties", "ties"},
			{"dare_linear_core", "cat"},
			{"dare_linear_knots", "cat"},
			{"dare_ties_core", "ties_core"},
		} {
			var got [2]*combine.Result
			for i, method := range pair {
				o := combine.Options{Method: method}
				if i == 0 || strings.HasPrefix(method, "ties") {
					o.Density = 1
				}

				var err error
				if got[i], err = combine.Run(t.Context(), list, o); err != nil {
					t.Fatal(err)
				}
			}

			for i, l := range got[0].Low {
				if !near(delta(l), delta(got[1].Low[i]), 1e-5) {
					t.Fatalf("%s is not %s for %s", pair[0], pair[1], l.Module.Path)
				}
			}
		}
	})
}

// TestThreads: results do not depend on the number of threads, and random pruning only on the seed.
func TestThreads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := []combine.Named{drawn(t, "a", 2, true), drawn(t, "b", 2, false)}
		method := rapid.SampledFrom([]string{
			"svd", "dare_ties", "dare_linear_svd", "tsv_core", "dare_ties_core", "dare_ties_knots",
		}).Draw(t, "method")
		o := combine.Options{Method: method, Seed: 3, Threads: 1}
		if method != "svd" && method != "tsv_core" {
			o.Density = 0.5
		}

		one, err := combine.Run(t.Context(), list, o)
		if err != nil {
			t.Fatal(err)
		}

		o.Threads = 4
		four, err := combine.Run(t.Context(), list, o)
		if err != nil {
			t.Fatal(err)
		}

		for i, l := range one.Low {
			if !slices.Equal(delta(l), delta(four.Low[i])) {
				t.Fatalf("%s of %s", method, l.Module.Path)
			}
		}
	})
}

// TestRefused: what has no weighted sum, or options that do not fit, are refused in words.
func TestRefused(t *testing.T) {
	plain := func(change func(a *adapter.Adapter)) combine.Named {
		var n combine.Named
		rapid.Check(t, func(r *rapid.T) { n = drawn(r, "a", 2, false) })
		change(n.Adapter)
		return n
	}

	ok := plain(func(*adapter.Adapter) {})
	for i, c := range []struct {
		n    combine.Named
		o    combine.Options
		want error
	}{
		{plain(func(a *adapter.Adapter) { a.Config.DoRA = true }), combine.Options{Method: "cat"}, combine.ErrRefused},
		{
			plain(func(a *adapter.Adapter) { a.Config.OutputBias = true }),
			combine.Options{Method: "cat"},
			combine.ErrRefused,
		},
		{plain(func(a *adapter.Adapter) {
			a.Whole = []*adapter.Whole{
				{Key: "norm.weight"},
			}
		}), combine.Options{Method: "svd"}, combine.ErrRefused},
		{plain(func(a *adapter.Adapter) {
			a.Rows = []*adapter.Rows{
				{},
			}
		}), combine.Options{Method: "linear"}, combine.ErrRefused},
		{plain(func(a *adapter.Adapter) { a.Low[0].Module.In = 9 }), combine.Options{Method: "cat"}, adapter.ErrBase},
		{ok, combine.Options{Method: "mean"}, combine.ErrMethod},
		{ok, combine.Options{Method: "ties"}, combine.ErrOption},
		{ok, combine.Options{Method: "ties", Density: math.NaN()}, combine.ErrOption},
		{ok, combine.Options{Method: "ties", Density: 2}, combine.ErrOption},
		{ok, combine.Options{Method: "ties", Density: 0.5, Sign: "majority"}, combine.ErrOption},
		{ok, combine.Options{Method: "linear", Sign: combine.Frequency}, combine.ErrOption},
		{ok, combine.Options{Method: "cat", Density: 0.5}, combine.ErrOption},
		{ok, combine.Options{Method: "cat", Rank: 4}, combine.ErrOption},
		{ok, combine.Options{Method: "svd", Rank: -1}, combine.ErrOption},
		{ok, combine.Options{Method: "cat", Weights: []float64{1}}, combine.ErrOption},
		{ok, combine.Options{Method: "cat", Weights: []float64{1, math.Inf(1)}}, combine.ErrOption},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if _, err := combine.Run(t.Context(), []combine.Named{ok, c.n}, c.o); !errors.Is(err, c.want) {
				t.Errorf("%+v: %v, want %v", c.o, err, c.want)
			}
		})
	}

	if _, err := combine.Run(t.Context(), nil, combine.Options{Method: "cat"}); !errors.Is(err, combine.ErrOption) {
		t.Errorf("nothing to combine: %v", err)
	}
}
