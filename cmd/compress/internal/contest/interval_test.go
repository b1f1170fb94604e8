package contest

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

// TestHalfWidth compares with an implementation of others; 1e-9 is far above what the bisection leaves.
func TestHalfWidth(t *testing.T) {
	for _, n := range []int{2, 3, 10, 36, 1000} {
		v := Versus{Windows: n, Stderr: 2}
		want := 2 * distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(n - 1)}.Quantile(0.975)
		if got := v.HalfWidth(); math.Abs(got-want) > 1e-9*want {
			t.Errorf("%d windows: %g, want %g", n, got, want)
		}
	}
}
