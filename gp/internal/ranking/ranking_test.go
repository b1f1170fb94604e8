package ranking

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMasks: against a stable sort, with ties, signed zeros, infinities and NaN.
func TestMasks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	special := []float32{
		0, float32(math.Copysign(0, -1)), 1, -1, float32(math.Inf(1)), float32(math.Inf(-1)),
		float32(math.NaN()),
	}

	for range 2000 {
		row := make([]float32, r.IntN(200))
		for i := range row {
			row[i] = float32(r.NormFloat64())
			if r.IntN(2) == 0 {
				row[i] = special[r.IntN(len(special))]
			}
		}

		keys, scratch := make([]uint32, len(row)), make([]uint32, len(row))
		Keys(keys, row)
		order := func(group []float32) []int {
			at := make([]int, len(group))
			for i := range at {
				at[i] = i
			}

			slices.SortStableFunc(at, func(a, b int) int {
				x, y := group[a], group[b]
				switch {
				case x == y || x != x && y != y:
					return 0
				case y != y || x < y:
					return -1
				}
				return 1
			})

			return at
		}

		half := Half(nil, scratch, keys)
		for n, j := range order(row) {
			if len(half) > 0 && (half[j/8]>>(j%8)&1 == 1) != (n < len(row)/2) {
				t.Fatalf("half of %v: element %d is wrong", row, j)
			}
		}

		quads := Quads(nil, keys)
		for lo := 0; lo+4 <= len(row); lo += 4 {
			for n, j := range order(row[lo : lo+4]) {
				if (quads[lo/4]>>j&1 == 1) != (n < 2) {
					t.Fatalf("2 of 4 in %v: element %d is wrong", row[lo:lo+4], j)
				}
			}
		}

		slices.Sort(keys)
		if n := Distinct(scratch, keys); n != len(slices.Compact(keys)) {
			t.Fatalf("%d distinct", n)
		}
	}
}
