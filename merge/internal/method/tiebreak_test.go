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

// tiedProblem is a merge of one model whose differences to a base of 0 are x, ties by draws.
func tiedProblem(name string, x []float32, density float64) problem {
	p := problem{
		method: name, base: make([]float32, len(x)), models: [][]float32{x}, work: 3, drawn: true, seed: 3,
		each: func(int) recipe.Values {
			v := recipe.Values{"weight": num(1), "density": num(density)}
			if name == "breadcrumbs" {
				v["gamma"] = num(0.04)
			}
			return v
		},
	}

	if name == "sce" {
		// Two models that differ by x from a base of 0 in opposite directions vary by x.
		p.models = [][]float32{x, make([]float32, len(x))}
		p.each, p.params = nil, recipe.Values{"select_topk": num(density)}
	}

	return p
}

// counts are how often every magnitude is among the elements that stay.
func counts(x []float32, kept func(i int) bool) map[float64]int {
	n := map[float64]int{}
	for i, v := range x {
		if v != 0 && kept(i) {
			n[math.Abs(float64(v))]++
		}
	}
	return n
}

// TestTiesDrawn: of every magnitude as many elements stay as by the index, at every size and distribution; those that
// stay among equals are spread over the tensor instead of standing at its front.
func TestTiesDrawn(t *testing.T) {
	for name, distribution := range distributions {
		for _, n := range []int{7, 4097, 150_001} {
			r := rand.New(rand.NewPCG(uint64(n), 5))
			x := make([]float32, n)
			for i := range x {
				x[i] = distribution(r, i)
			}

			for _, method := range []string{"ties", "breadcrumbs", "sce"} {
				for _, density := range []float64{0.003, 0.5} {
					p := tiedProblem(method, x, density)
					drawn := p.solve(t)
					p.drawn = false
					indexed := p.solve(t)
					what := fmt.Sprintf("%s of %s, n %d, density %v", method, name, n, density)
					compareDrawn(t, what, x, drawn, indexed)
				}
			}
		}
	}
}

func compareDrawn(t *testing.T, what string, x, drawn, indexed []float32) {
	t.Helper()
	got := counts(x, func(i int) bool { return drawn[i] != 0 })
	want := counts(x, func(i int) bool { return indexed[i] != 0 })
	all := counts(x, func(int) bool { return true })

	for m, n := range want {
		if got[m] != n {
			t.Fatalf("%s: %d elements of magnitude %v stay, want %d", what, got[m], m, n)
		}
	}

	for m, n := range got {
		if want[m] != n {
			t.Fatalf("%s: %d elements of magnitude %v stay, want %d", what, n, m, want[m])
		}
	}

	// Of k kept among e equals, spread evenly, those in the front half are hypergeometric: six standard deviations.
	for m, k := range got {
		e := all[m]
		if k == e || e < 1000 {
			continue
		}

		var front, frontKept int
		half := e / 2
		for i, v := range x {
			if math.Abs(float64(v)) != m || front == half {
				continue
			}

			front++
			if drawn[i] != 0 {
				frontKept++
			}
		}

		p := float64(half) / float64(e)
		mean := float64(k) * p
		sigma := math.Sqrt(mean * (1 - p) * float64(e-k) / float64(e-1))
		if math.Abs(float64(frontKept)-mean) > 6*sigma {
			t.Errorf("%s: %d of the %d kept of magnitude %v are in the front half, want %.0f ± %.0f", what, frontKept,
				k, m, mean, sigma)
		}
	}
}

// TestTiesDrawnAlike: the same elements stay for one worker and several, in words of bfloat16 and in float32; another
// seed keeps others.
func TestTiesDrawnAlike(t *testing.T) {
	const n = 1_100_003 // three segments, and two keys of draws
	r := rand.New(rand.NewPCG(8, 8))
	base := make([]float32, n)
	models := [][]float32{make([]float32, n), make([]float32, n)}
	for i := range base {
		base[i] = kernels.FromBF16(kernels.ToBF16(float32(r.NormFloat64())))
		for _, m := range models {
			m[i] = kernels.FromBF16(kernels.ToBF16(base[i] + float32(0.01*r.NormFloat64())))
		}
	}

	for _, method := range []string{"ties", "breadcrumbs_ties", "sce", "della"} {
		p := problem{method: method, base: base, models: models, work: 1, drawn: true, half: true}
		if method == "sce" {
			p.params = recipe.Values{"select_topk": num(0.3)}
		} else {
			p.each = func(int) recipe.Values { return recipe.Values{"weight": num(0.5), "density": num(0.4)} }
		}

		one := p.solve(t)

		p.work = 5
		if five := p.solve(t); !bytes.Equal(bytesOf(one), bytesOf(five)) {
			t.Errorf("%s: one worker and five differ", method)
		}

		p.skew = 1 // what is not aligned is not merged as words
		if apart := p.solve(t); !bytes.Equal(bytesOf(one), bytesOf(apart)) {
			t.Errorf("%s: words and single numbers differ", method)
		}

		p.skew, p.seed = 0, 1
		if other := p.solve(t); slices.Equal(one, other) {
			t.Errorf("%s: the seed makes no difference", method)
		}

		p.seed, p.drawn = 0, false
		if indexed := p.solve(t); slices.Equal(one, indexed) {
			t.Errorf("%s: nothing is tied", method)
		}
	}
}
