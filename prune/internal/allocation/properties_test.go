package allocation

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// percentages are those of some decoder layers.
func percentages(t *rapid.T) []float64 {
	return rapid.SliceOfN(rapid.Float64Range(0, 20), 2, 12).Draw(t, "percentages")
}

// TestOWLKeepsTheMean: layers lose p on average, differ by at most twice lambda, and a layer with more outliers never
// loses more. The least sparsity of 0.01 stays out of it here.
func TestOWLKeepsTheMean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := percentages(t)
		p := rapid.Float64Range(.3, .7).Draw(t, "p")
		lambda := rapid.Float64Range(0, .14).Draw(t, "lambda")
		got, err := OWL(d, p, lambda)
		if err != nil {
			t.Fatal(err)
		}

		mean := 0.0
		for i, v := range got {
			mean += v / float64(len(got))
			for k, w := range got {
				if d[i] > d[k] && v > w+1e-12 {
					t.Fatalf("%g %% outliers lose %g, %g %% lose %g", d[i], v, d[k], w)
				}
			}
		}
		if math.Abs(mean-p) > 1e-12 || slices.Max(got)-slices.Min(got) > 2*lambda+1e-12 {
			t.Fatalf("%v: mean %g, want %g; lambda %g", got, mean, p, lambda)
		}
	})
}

// TestMixedRange: an N is refused or within 0 and M - 1, at most lambda and the rounding from the others, and with
// special never one less than most.
func TestMixedRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := percentages(t)
		m := rapid.IntRange(2, 16).Draw(t, "m")
		n := rapid.IntRange(1, m-1).Draw(t, "n")
		lambda := rapid.Float64Range(0, float64(m)).Draw(t, "lambda")
		special := rapid.Bool().Draw(t, "special")
		got, err := Mixed(d, n, m, lambda, special)
		if err != nil {
			return
		}

		for _, v := range got {
			if v < 0 || v >= m || special && v == n-1 {
				t.Fatalf("%v of %d, from %d", got, m, n)
			}
		}
		if !special && float64(slices.Max(got)-slices.Min(got)) > lambda+1 {
			t.Fatalf("%v with lambda %g", got, lambda)
		}
	})
}

// TestSpectralKeepsTheTotal: all weights together lose p, and a heavier tail never loses more than a lighter one.
func TestSpectralKeepsTheTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(rapid.Float64Range(1, 6), 2, 12).Draw(t, "exponents")
		weights := rapid.SliceOfN(rapid.Float64Range(1, 1e6), len(a), len(a)).Draw(t, "weights")
		p := rapid.Float64Range(.1, .6).Draw(t, "p")
		got, err := Spectral(a, weights, p, .2)
		if err != nil {
			t.Fatal(err)
		}

		lost, total := 0.0, 0.0
		for i, v := range got {
			lost += v * weights[i]
			total += weights[i]
			for k, w := range got {
				if a[i] < a[k] && v > w+1e-12 {
					t.Fatalf("exponents %g and %g lose %g and %g", a[i], a[k], v, w)
				}
			}
		}
		if math.Abs(lost-p*total) > 1e-9*total {
			t.Fatalf("%g of %g go, want %g of them", lost, total, p)
		}
	})
}

// TestBelowIsTheThreshold: where scores share no level and no matrix reaches its bound, what goes is what a sort of all
// scores says.
func TestBelowIsTheThreshold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 200).Draw(t, "scores")
		cut := rapid.IntRange(1, n-1).Draw(t, "cut")

		all := []*Levels{NewLevels(1), NewLevels(1), NewLevels(1)}
		want := make([]float64, len(all))
		counts := make([]float64, len(all))
		for i := range n {
			k := rapid.IntRange(0, len(all)-1).Draw(t, "matrix")
			if !all[k].Add(float32(math.Exp2(float64(i-n/2) / 16))) { // four levels apart
				t.Fatal("a score is negative")
			}

			counts[k]++
			if i < cut {
				want[k]++
			}
		}

		if slices.Contains(counts, 0) {
			return
		}
		for k, got := range Below(all, float64(cut)/float64(n), 1) {
			if math.Abs(got-want[k]/counts[k]) > 1e-9 {
				t.Fatalf("matrix %d loses %g of %g, want %g", k, got, counts[k], want[k])
			}
		}
	})
}
