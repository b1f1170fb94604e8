package method_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// distributions of differences: what thresholds meet in practice, and what makes brackets by a sample fail.
var distributions = map[string]func(r *rand.Rand, i int) float32{
	"normal":   func(r *rand.Rand, _ int) float32 { return float32(r.NormFloat64()) },
	"bfloat16": func(r *rand.Rand, _ int) float32 { return kernels.FromBF16(kernels.ToBF16(float32(r.NormFloat64()))) },
	"sparse": func(r *rand.Rand, _ int) float32 {
		if r.IntN(10) > 0 {
			return 0
		}
		return float32(r.NormFloat64())
	},
	"constant": func(*rand.Rand, int) float32 { return 0.5 },
	"three":    func(r *rand.Rand, _ int) float32 { return float32(r.IntN(3)) - 1 },
	"runs":     func(r *rand.Rand, i int) float32 { return float32(r.NormFloat64()) * float32(1+i/20000) },
	// What the sample sees, every 2048th run of 16, is far from the rest.
	"hidden": func(r *rand.Rand, i int) float32 {
		if i%2048 < 16 {
			return 100
		}
		return float32(r.NormFloat64())
	},
}

// keep returns which elements are among the k largest magnitudes, the lower index first.
func keep(x []float32, k int) []bool {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}

	slices.SortStableFunc(order, func(a, b int) int {
		switch p, q := math.Abs(float64(x[a])), math.Abs(float64(x[b])); {
		case p > q:
			return -1
		case p < q:
			return 1
		}
		return 0
	})

	kept := make([]bool, len(x))
	for _, i := range order[:k] {
		kept[i] = true
	}

	return kept
}

// TestThresholds: what ties and breadcrumbs keep of one difference is exact for tensors of every size and any
// distribution.
func TestThresholds(t *testing.T) {
	for name, draw := range distributions {
		for _, n := range []int{1, 7, 4097, 200_003} {
			r := rand.New(rand.NewPCG(uint64(n), 5))
			x := make([]float32, n)
			for i := range x {
				x[i] = draw(r, i)
			}

			for _, density := range []float64{0.003, 0.5, 0.93} {
				checkTies(t, name, x, density)
				checkBreadcrumbs(t, name, x, density, 0.04)
			}
		}
	}
}

func checkTies(t *testing.T, name string, x []float32, density float64) {
	t.Helper()
	got := problem{
		method: "ties", base: make([]float32, len(x)), models: [][]float32{x}, work: 3,
		each: func(int) recipe.Values { return recipe.Values{"weight": num(1), "density": num(density)} },
	}.solve(t)
	kept := keep(x, max(1, int(density*float64(len(x)))))
	compareKept(t, fmt.Sprintf("ties %s n=%d density %v", name, len(x), density), got, x, kept)
}

func checkBreadcrumbs(t *testing.T, name string, x []float32, density, gamma float64) {
	t.Helper()
	got := problem{
		method: "breadcrumbs", base: make([]float32, len(x)), models: [][]float32{x}, work: 2,
		each: func(int) recipe.Values {
			return recipe.Values{"weight": num(1), "density": num(density), "gamma": num(gamma)}
		},
	}.solve(t)

	n := len(x)
	target := int(density * float64(n))
	top := min(int(gamma*float64(n)), n-target)
	kept := breadcrumbs(x, target, top)
	if target == 0 {
		kept = make([]bool, n)
	}

	compareKept(t, fmt.Sprintf("breadcrumbs %s n=%d density %v", name, n, density), got, x, kept)
}

// breadcrumbs keeps target elements below the top largest; among equal magnitudes those with the lower index.
func breadcrumbs(x []float32, target, top int) []bool {
	count := map[float64]int{} // of kept elements by magnitude
	mags := make([]float64, len(x))
	for i, v := range x {
		mags[i] = math.Abs(float64(v))
	}

	sorted := slices.Clone(mags)
	slices.SortFunc(sorted, func(a, b float64) int { return -compare(a, b) })
	for _, m := range sorted[top : top+target] {
		count[m]++
	}

	kept := make([]bool, len(x))
	for i, m := range mags {
		if count[m] > 0 {
			count[m]--
			kept[i] = true
		}
	}

	return kept
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func compareKept(t *testing.T, what string, got, x []float32, kept []bool) {
	t.Helper()
	for i, v := range x {
		if !kept[i] {
			v = 0
		}
		if got[i] != v {
			t.Fatalf("%s: element %d of magnitude %v is %v, want %v", what, i, x[i], got[i], v)
		}
	}
}

// TestWorkers: every method gives the same bytes for one worker and for five, at sizes of several segments.
func TestWorkers(t *testing.T) {
	const rows, cols = 300, 2500 // more than one segment
	r := rand.New(rand.NewPCG(3, 4))
	draw := func(scale float64) []float32 {
		x := make([]float32, rows*cols)
		for i := range x {
			x[i] = kernels.FromBF16(kernels.ToBF16(float32(scale * r.NormFloat64())))
		}
		return x
	}

	base := draw(1)
	models := [][]float32{draw(0.1), draw(0.1)}
	for _, m := range models {
		for i := range m {
			m[i] = kernels.FromBF16(kernels.ToBF16(base[i] + m[i]))
		}
	}

	w := func(v recipe.Values) func(int) recipe.Values {
		return func(int) recipe.Values {
			full := recipe.Values{"weight": num(0.5)}
			for name, x := range v {
				full[name] = x
			}
			return full
		}
	}

	half := recipe.Values{"density": num(0.5)}
	for _, p := range []problem{
		{method: "linear", each: w(nil)},
		{method: "slerp", params: recipe.Values{"t": num(0.3)}},
		{
			method: "nuslerp", each: w(nil),
			params: recipe.Values{"nuslerp_flatten": truth(false), "nuslerp_row_wise": truth(true)},
		},
		{method: "karcher"},
		{method: "ties", each: w(half)},
		{method: "dare_ties", each: w(half), seed: 9},
		{method: "della", each: w(half), seed: 9},
		{method: "breadcrumbs_ties", each: w(half)},
		{method: "model_stock"},
		{method: "sce", params: recipe.Values{"select_topk": num(0.3)}},
		{method: "arcee_fusion"},
		{method: "ramplus_tl"},
		{method: "pcb"},
		{method: "emr", params: recipe.Values{"task": num(2)}},
		{method: "bitdelta"},
	} {
		p.shape, p.models = []int64{rows, cols}, models

		switch p.method {
		case "linear", "karcher":
		default:
			p.base = base
		}

		if p.method == "slerp" || p.method == "arcee_fusion" {
			p.models = models[:1]
		}

		p.work = 1
		one := p.solve(t)
		p.work = 5
		if five := p.solve(t); !bytes.Equal(bytesOf(one), bytesOf(five)) {
			t.Errorf("%s: one worker and five differ", p.method)
		}
	}
}

// TestDareShare: the share that is kept is the density, another seed keeps others, and the sum of magnitudes is
// restored.
func TestDareShare(t *testing.T) {
	const n = 1 << 20
	r := rand.New(rand.NewPCG(1, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(1 + math.Abs(r.NormFloat64()))
	}

	var outs [][]float32
	for seed := range uint64(2) {
		p := problem{
			method: "dare_linear", base: make([]float32, n), models: [][]float32{x}, seed: seed,
			each: func(int) recipe.Values { return recipe.Values{"weight": num(1), "density": num(0.3)} },
		}

		out := p.solve(t)
		kept := 0
		before := 0.0
		after := 0.0
		for i, v := range out {
			before += float64(x[i])
			after += float64(v)
			if v != 0 {
				kept++
			}
		}

		if share, sigma := float64(kept)/n, math.Sqrt(0.3*0.7/n); math.Abs(share-0.3) > 4*sigma {
			t.Errorf("seed %d keeps %v", seed, share)
		}
		if math.Abs(after/before-1) > 1e-6 {
			t.Errorf("seed %d: sum of magnitudes is %v of before", seed, after/before)
		}

		outs = append(outs, out)
	}

	same := 0
	for i := range n {
		if (outs[0][i] == 0) == (outs[1][i] == 0) {
			same++
		}
	}

	if share := float64(same) / n; math.Abs(share-(0.3*0.3+0.7*0.7)) > 0.003 { // six standard deviations
		t.Errorf("two seeds agree on %v of the elements", share)
	}
}
