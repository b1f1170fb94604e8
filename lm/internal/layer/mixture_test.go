package layer

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTopK compares with a stable sort: the largest first, of equal ones the lower expert.
func TestTopK(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for n := 1; n <= 9; n++ {
		for k := 1; k <= n; k++ {
			for range 50 {
				row := make([]float32, n)
				want := make([]int, n)
				for i := range row {
					row[i] = float32(random.IntN(4)) // many are equal
					want[i] = i
				}

				slices.SortStableFunc(want, func(a, b int) int { return cmp.Compare(row[b], row[a]) })
				if got := topK(nil, row, k); !slices.Equal(got, want[:k]) {
					t.Fatalf("%v, the first %d: %v, want %v", row, k, got, want[:k])
				}
			}
		}
	}
}

// TestWeightsBackward compares with differences of Σ dweights·weights, which is a ratio of linear functions: the
// central difference over 2h is off by h² times its third derivative, below 1e-5 here, beside float32's 1e-6.
func TestWeightsBackward(t *testing.T) {
	probs := []float32{0.1, 0.4, 0.05, 0.25, 0.2}
	dweights := []float32{0.5, -2, 3, 1, 7}
	top := []int{1, 3, 0}

	for _, norm := range []bool{false, true} {
		value := func(change int, by float64) float64 {
			sum, dot := 0.0, 0.0
			for _, e := range top {
				p := float64(probs[e])
				if e == change {
					p += by
				}
				sum += p
				dot += p * float64(dweights[e])
			}
			if norm {
				return dot / sum
			}
			return dot
		}

		d := []float32{9, 9, 9, 9, 9} // what was there before does not count
		weightsBackward(d, probs, dweights, top, norm)
		for e := range probs {
			const h = 1e-4
			want := (value(e, h) - value(e, -h)) / (2 * h)
			if math.Abs(float64(d[e])-want) > 1e-5 {
				t.Errorf("norm %t, expert %d: %g, want %g", norm, e, d[e], want)
			}
		}
	}
}

// TestLogSumExp: a constant that is added comes out again, however large, and n equal values give log n more.
func TestLogSumExp(t *testing.T) {
	for _, shift := range []float32{0, -1e4, 1e4, 3e38} {
		if got, want := logSumExp([]float32{shift, shift, shift}), float64(shift)+math.Log(3); got != want {
			t.Errorf("%g: %g, want %g", shift, got, want)
		}
	}
	if got := logSumExp([]float32{2, float32(math.Inf(-1))}); got != 2 {
		t.Errorf("beside an impossible value: %g", got)
	}
}

// TestLargest: the first of equal ones; none where the logits are broken.
func TestLargest(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		row  []float32
		want int32
	}{
		{[]float32{1, 3, 3, 2}, 1},
		{[]float32{-5}, 0},
		{[]float32{-inf, -7, -inf}, 1},
		{[]float32{-inf, -inf}, -1},
		{[]float32{1, inf}, -1},
		{[]float32{nan, 1}, -1},
		{[]float32{1, nan}, -1},
		{nil, -1},
	} {
		if got := largest(c.row); got != c.want {
			t.Errorf("%v: %d, want %d", c.row, got, c.want)
		}
	}
}
