package dsnot

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// Counts stay, in groups too; an exchange of strict rows never makes the expected change larger than it was; a
// swap is counted.
func TestRefineKeepsCounts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := 4 * rapid.IntRange(1, 12).Draw(rt, "groups")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		r := Row{
			Mean: make([]float64, n), Var: make([]float64, n), W: make([]float32, n), Score: make([]float32, n),
			Keep: make([]uint8, n),
		}

		for j := range n {
			r.W[j] = float32(rng.NormFloat64())
			r.Mean[j] = rng.NormFloat64() * 3
			r.Var[j] = rng.Float64()
			r.Score[j] = float32(math.Abs(float64(r.W[j])))
			r.Keep[j] = uint8(j / 2 % 2)
		}

		o := Options{
			Cycles: rapid.IntRange(0, 60).Draw(rt, "cycles"), Threshold: .1, SameSign: rapid.Bool().Draw(rt, "same"),
			Strict: rapid.Bool().Draw(rt, "strict"), M: rapid.SampledFrom([]int{0, 4}).Draw(rt, "m"),
		}

		before := change(r)
		swaps := r.Refine(o)
		if swaps > o.Cycles {
			rt.Fatalf("%d exchanges in %d cycles", swaps, o.Cycles)
		}

		size := n
		if o.M > 0 {
			size = o.M
		}

		for j := 0; j < n; j += size {
			kept := 0
			for _, k := range r.Keep[j : j+size] {
				kept += int(k)
			}
			if kept != size/2 {
				rt.Fatalf("group at %d keeps %d of %d", j, kept, size)
			}
		}

		if after := change(r); (o.Strict && o.SameSign && o.M == 0) && math.Abs(after) > math.Abs(before)+1e-9 {
			rt.Fatalf("the change grows from %g to %g", before, after)
		}
	})
}

func change(r Row) (sum float64) {
	for j, k := range r.Keep {
		if k == 0 {
			sum += float64(r.W[j]) * r.Mean[j]
		}
	}
	return sum
}
