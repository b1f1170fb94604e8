package stats

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

// TestStudentP compares with an implementation of others. 1e-12 is a few thousand roundings of a sum of a few hundred
// terms; the logarithm of the gamma function of v/2, some times v itself, is rounded too.
func TestStudentP(t *testing.T) {
	for _, v := range []float64{1, 2, 3, 10, 31, 500, 1e5} {
		for _, x := range []float64{0, 1e-9, 0.1, 0.7, 1, 2, 5, 40} {
			want := 2 * distuv.StudentsT{Mu: 0, Sigma: 1, Nu: v}.Survival(x)
			if got := StudentP(-x, v); math.Abs(got-want) > 1e-12+3e-15*v {
				t.Errorf("t %g, %g degrees: %g, want %g", x, v, got, want)
			}
		}
	}
}

// TestStudent95 compares with an implementation of others; 1e-9 is far above what the bisection leaves.
func TestStudent95(t *testing.T) {
	for _, v := range []float64{1, 2, 9, 35, 999} {
		want := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: v}.Quantile(0.975)
		if got := Student95(v); math.Abs(got-want) > 1e-9*want {
			t.Errorf("%g degrees: %g, want %g", v, got, want)
		}
	}
}

// TestStudentPaired: 0.2, 0.3, 0.4 have the mean 0.3, the standard error 0.1/√3, t = 5.196 with 2 degrees, p = 0.0351.
func TestStudentPaired(t *testing.T) {
	r := StudentPaired([]float64{1.2, 1.4, 1.6}, []float64{1.0, 1.1, 1.2})
	if math.Abs(r.Difference-0.3) > 1e-12 || math.Abs(r.T-3*math.Sqrt(3)) > 1e-9 || math.Abs(r.P-0.0351) > 1e-4 {
		t.Errorf("%+v", r)
	}
	if r := StudentPaired([]float64{3, 4}, []float64{1, 2}); r.P != 0 || r.Difference != 2 {
		t.Errorf("the same difference throughout: %+v", r)
	}
	if r := StudentPaired([]float64{3, 4}, []float64{3, 4}); r.P != 1 || r.Difference != 0 {
		t.Errorf("no difference: %+v", r)
	}
}

// TestStudentPairedNotFinite: a loss that is no number decides nothing, whichever list it stands in, and says so.
func TestStudentPairedNotFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64} {
		a := []float64{1, bad, 3}
		b := []float64{1.5, 1, 2}
		for _, r := range []PairedT{StudentPaired(a, b), StudentPaired(b, a)} {
			if !math.IsNaN(r.P) || !math.IsNaN(r.T) {
				t.Errorf("%g: %+v, want NaN", bad, r)
			}
		}
	}
}

// TestHolmLeavesOutWhatHasNoResult: 0.01 and 0.04 are two tests, not three.
func TestHolmLeavesOutWhatHasNoResult(t *testing.T) {
	for _, p := range [][]float64{{0.04, math.NaN(), 0.01}, {math.NaN(), 0.04, 0.01}} {
		got := Holm(p)
		for i := range p {
			want := map[float64]float64{0.01: 0.02, 0.04: 0.04}[p[i]]
			if math.IsNaN(p[i]) != math.IsNaN(got[i]) || !math.IsNaN(p[i]) && got[i] != want {
				t.Errorf("%v: %v", p, got)
			}
		}
	}
}

// TestPairedBootstrapWithoutNumbers: differences that are no numbers are no evidence.
func TestPairedBootstrapWithoutNumbers(t *testing.T) {
	if _, _, p := PairedBootstrap(3, 100, 1, func([]int) float64 { return math.NaN() }); p != 1 {
		t.Errorf("p %g, want 1", p)
	}
}
