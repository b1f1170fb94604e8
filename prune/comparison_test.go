package prune

import (
	"math"
	"testing"
)

// sampleRuns has runs of three targets, one of them alone and two of a single window.
func sampleRuns() *Comparison {
	return &Comparison{Model: "m", Dense: HeldOut{Perplexity: 2, Windows: []float64{1, 1, 1}}, Runs: []Outcome{
		{
			Method: "a", Target: "0.5", HeldOut: HeldOut{Perplexity: 3, NLL: 1.1, Windows: []float64{1.0, 1.1, 1.2}},
			Sparsity: 0.5,
		},
		{
			Method: "b", Target: "0.5", HeldOut: HeldOut{Perplexity: 4, NLL: 1.4, Windows: []float64{1.2, 1.4, 1.6}},
			Sparsity: 0.5,
		},
		{
			Method: "c", Target: "0.5", HeldOut: HeldOut{Perplexity: 3, NLL: 1.2, Windows: []float64{1.1, 1.2, 1.3}},
			Sparsity: 0.5,
		},
		{Method: "a", Target: "2:4", HeldOut: HeldOut{Perplexity: 90, NLL: 4, Windows: []float64{4}}, Sparsity: 0.5},
		{Method: "b", Target: "2:4", HeldOut: HeldOut{Perplexity: 95, NLL: 5, Windows: []float64{5}}, Sparsity: 0.5},
		{
			Method: "a", Target: "0.3", HeldOut: HeldOut{Perplexity: 30, NLL: 3, Windows: []float64{3, 3, 3}},
			Sparsity: 0.3,
		},
	}}
}

// TestJudge: paired tests against the best of a target, adjusted for their number.
func TestJudge(t *testing.T) {
	r := sampleRuns()
	r.judge()
	// b - a is 0.2, 0.3, 0.4: mean 0.3, standard error 0.1/√3, t = 5.196 with 2 degrees, p = 0.0351; c - a is
	// 0.1 throughout.
	b := r.Runs[1].Versus
	if b == nil || b.Best != "a" || math.Abs(b.T-3*math.Sqrt(3)) > 1e-9 || math.Abs(b.P-0.0351) > 1e-4 {
		t.Errorf("b: %+v", b)
	}

	c := r.Runs[2].Versus
	if c == nil || c.P > 1e-9 || math.Abs(c.Difference-0.1) > 1e-12 || c.Adjusted > 1e-9 || b.Adjusted != b.P {
		t.Errorf("c: %+v, b: %+v", c, b)
	}

	for _, i := range []int{0, 3, 4, 5} {
		if r.Runs[i].Versus != nil {
			t.Errorf("run %d is tested: %+v", i, r.Runs[i].Versus)
		}
	}
}

// TestInterval: the difference to the best has an interval around it, by hand for three windows: 0.1, 0.2 and
// 0.3 more, a mean of 0.2 with an error of 0.1/√3, and a t of 4.3027 with two degrees of freedom.
func TestInterval(t *testing.T) {
	r := &Comparison{Runs: []Outcome{
		{Target: "0.5", Method: "a", HeldOut: HeldOut{NLL: 2, Windows: []float64{1, 2, 3}}},
		{Target: "0.5", Method: "b", HeldOut: HeldOut{NLL: 2.2, Windows: []float64{1.1, 2.2, 3.3}}},
	}}

	r.judge()
	if r.Runs[0].Interval != nil {
		t.Error("the best has an interval")
	}

	got, half := r.Runs[1].Interval, 4.302653*0.1/math.Sqrt(3)
	if got == nil || math.Abs(got[0]-(0.2-half)) > 1e-6 || math.Abs(got[1]-(0.2+half)) > 1e-6 {
		t.Errorf("%v, want 0.2 ± %g", got, half)
	}
}
