package stats

import (
	"math"
	"testing"
)

func TestAdjustHolm(t *testing.T) {
	tests := []*Versus{{P: 0.04}, {P: 0.01}, {P: 0.03}, {P: 0.9}}
	AdjustHolm(tests)
	for i, want := range []float64{0.09, 0.04, 0.09, 0.9} {
		if math.Abs(tests[i].Adjusted-want) > 1e-12 {
			t.Errorf("%d: %g, want %g", i, tests[i].Adjusted, want)
		}
	}
}
