package layer

import (
	"math"
	"slices"
	"testing"
)

// The sums of softmax weights, and what is kept by them, by hand.
func TestMass(t *testing.T) {
	m := &mass{heads: 2, sums: make([]float64, 2*6)}
	m.add([]float32{0, float32(math.Log(3))}, 1, 1, 0)            // 1/4, 3/4
	m.add([]float32{0, float32(2 * math.Log(2)), 0}, 1, 0.5, 0)   // scores 0, ln 2, 0: 1/4, 1/2, 1/4
	m.add([]float32{1e4, 0}, 1, 1, float64(float32(math.Log(4)))) // capped at ln 4: 4/5, 1/5
	for row, want := range []float64{.25 + .25 + .8, .75 + .5 + .2, .25, 0, 0, 0} {
		if got := m.sums[2*row+1]; math.Abs(got-want) > 1e-6 { // float32 scores
			t.Errorf("row %d has %g, not %g", row, got, want)
		}
		if m.sums[2*row] != 0 {
			t.Errorf("row %d of the other head has %g", row, m.sums[2*row])
		}
	}

	// Of six rows four stay: the last two, and of the others those with most.
	if got := m.keep(6, 4, 1); !slices.Equal(got, []int{0, 1, 4, 5}) {
		t.Errorf("%v", got)
	}
	if got := m.keep(6, 3, 1); !slices.Equal(got, []int{1, 4, 5}) {
		t.Errorf("%v", got)
	}
	if got := m.keep(6, 4, 0); !slices.Equal(got, []int{2, 3, 4, 5}) { // equal ones: the later
		t.Errorf("%v", got)
	}
}
