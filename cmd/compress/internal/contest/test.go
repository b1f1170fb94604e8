package contest

import (
	"cmp"
	"math"
	"slices"
)

// Versus is the paired test of a run against the best one of its target: Student's t on the differences of the windows' mean
// losses.
type Versus struct {
	Best       string  `json:"best"`
	Difference float64 `json:"nll_difference"` // mean over windows, nats per token
	Stderr     float64 `json:"stderr"`
	T          float64 `json:"t"`
	Windows    int     `json:"windows"`
	P          float64 `json:"p"`      // two-sided
	Adjusted   float64 `json:"p_holm"` // for as many comparisons as the target has (Holm, 1979)
}

// judge compares every run with the best one of its target, the one with the lowest loss; a single window allows no test.
func (r *Report) judge() {
	for _, target := range r.targets() {
		runs := r.of(target)
		best := slices.MinFunc(runs, func(a, b *Run) int { return cmp.Compare(a.NLL, b.NLL) })
		var tests []*Versus
		for _, run := range runs {
			run.Versus, run.Interval = nil, nil
			if run == best || len(run.Windows) < 2 || len(run.Windows) != len(best.Windows) {
				continue
			}
			run.Versus = paired(run.Windows, best.Windows)
			run.Versus.Best = best.Method

			half := run.Versus.HalfWidth()
			run.Interval = &[2]float64{run.Versus.Difference - half, run.Versus.Difference + half}
			tests = append(tests, run.Versus)
		}
		holm(tests)
	}
}

// paired tests whether the mean of a - b is zero.
func paired(a, b []float64) *Versus {
	v := &Versus{Windows: len(a), P: 1}
	n := float64(len(a))
	for i := range a {
		v.Difference += (a[i] - b[i]) / n
	}
	square := 0.0
	for i := range a {
		d := a[i] - b[i] - v.Difference
		square += d * d
	}
	v.Stderr = math.Sqrt(square / (n - 1) / n)
	switch {
	case v.Stderr > 0:
		v.T = v.Difference / v.Stderr
		v.P = studentP(v.T, n-1)
	case v.Difference != 0:
		v.P = 0 // all windows differ by the same amount
	}
	return v
}

// holm adjusts the p values of a family of tests.
func holm(tests []*Versus) {
	sorted := slices.Clone(tests)
	slices.SortFunc(sorted, func(a, b *Versus) int { return cmp.Compare(a.P, b.P) })
	least := 0.0
	for i, t := range sorted {
		least = max(least, min(1, t.P*float64(len(sorted)-i)))
		t.Adjusted = least
	}
}

// studentP is the chance of a |t| at least as large with v degrees of freedom: I(v/(v+t²); v/2, 1/2).
func studentP(t, v float64) float64 {
	x := v / (v + t*t)
	if x >= 1 {
		return 1
	}
	a, b := v/2, 0.5
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab - la - lb + a*math.Log(x) + b*math.Log1p(-x))
	if x < (a+1)/(a+b+2) {
		return front / a * fraction(a, b, x)
	}
	return 1 - front/b*fraction(b, a, 1-x)
}

// fraction is the continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method.
func fraction(a, b, x float64) float64 {
	const tiny, enough = 1e-300, 1e-15
	away := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c, d := 1.0, 1/away(1-(a+b)*x/(a+1))
	f := d
	for m := 1.0; m < 500; m++ {
		for _, k := range []float64{m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m)), -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))} {
			d = 1 / away(1+k*d)
			c = away(1 + k/c)
			f *= c * d
		}
		if math.Abs(c*d-1) < enough {
			break
		}
	}
	return f
}
