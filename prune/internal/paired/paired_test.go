package paired

import (
	"math"
	"testing"
)

// Two-sided tail probabilities from tables of Student's distribution, to the digits printed there.
func TestStudent(t *testing.T) {
	for _, c := range []struct{ t, f, p float64 }{
		{12.706, 1, .05},
		{4.303, 2, .05},
		{2.571, 5, .05},
		{2.228, 10, .05},
		{2.042, 30, .05},
		{3.169, 10, .01},
		{1.372, 10, .2},
		{0, 7, 1},
		{1, 1, .5}, // Cauchy: exact
	} {
		if p := student(c.t, c.f); math.Abs(p-c.p) > 2e-4*(1+c.p) {
			t.Errorf("t %g, %g degrees: %.6f, want %g", c.t, c.f, p, c.p)
		}
	}
}

func TestPaired(t *testing.T) {
	mean, se, p := Test([]float64{1, 2, 3, 4}, []float64{0, 2, 1, 3}) // differences 1, 0, 2, 1
	if mean != 1 || math.Abs(se-math.Sqrt(2./3/4)) > 1e-15 || math.Abs(p-.09169) > 1e-4 {
		t.Errorf("mean %g, error %g, p %g", mean, se, p)
	}
	for _, c := range []struct {
		a, b []float64
		p    float64
	}{{nil, nil, 1}, {[]float64{1}, []float64{2}, 1}, {[]float64{1, 2}, []float64{1, 2}, 1}, {[]float64{2, 3}, []float64{1, 2}, 0}} {
		if _, _, p := Test(c.a, c.b); p != c.p {
			t.Errorf("%v against %v: p %g, want %g", c.a, c.b, p, c.p)
		}
	}
}
