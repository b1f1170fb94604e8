package contest

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/stats"
)

// Versus is the paired test of a run against the best one of its target: Student's t on the differences of the
// windows' mean losses.
type Versus struct {
	Best       string  `json:"best"`
	Difference float64 `json:"nll_difference"` // mean over windows, nats per token
	Stderr     float64 `json:"stderr"`
	T          float64 `json:"t"`
	Windows    int     `json:"windows"`
	P          float64 `json:"p"`      // two-sided; NaN where a loss is not finite
	Adjusted   float64 `json:"p_holm"` // for as many comparisons as the target has (Holm, 1979)
}

// written is a Versus in JSON, which has nothing for what is not finite but null.
type written struct {
	Best       string   `json:"best"`
	Difference *float64 `json:"nll_difference"`
	Stderr     *float64 `json:"stderr"`
	T          *float64 `json:"t"`
	Windows    int      `json:"windows"`
	P          *float64 `json:"p"`
	Adjusted   *float64 `json:"p_holm"`
}

// MarshalJSON writes null for what is not finite.
func (v Versus) MarshalJSON() ([]byte, error) {
	figure := func(x float64) *float64 {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
		return &x
	}

	return json.Marshal(written{
		Best: v.Best, Windows: v.Windows, Difference: figure(v.Difference), Stderr: figure(v.Stderr), T: figure(v.T),
		P: figure(v.P), Adjusted: figure(v.Adjusted),
	})
}

// UnmarshalJSON reads what MarshalJSON writes; null is NaN.
func (v *Versus) UnmarshalJSON(text []byte) error {
	var w written
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}

	figure := func(x *float64) float64 {
		if x == nil {
			return math.NaN()
		}
		return *x
	}

	*v = Versus{
		Best: w.Best, Windows: w.Windows, Difference: figure(w.Difference), Stderr: figure(w.Stderr), T: figure(w.T),
		P: figure(w.P), Adjusted: figure(w.Adjusted),
	}
	return nil
}

// judge compares every run with the best one of its target, the one with the lowest loss; a single window
// allows no test.
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

			run.Versus = Paired(run.Windows, best.Windows)
			run.Versus.Best = best.Method

			half := run.Versus.HalfWidth()
			run.Interval = &[2]float64{run.Versus.Difference - half, run.Versus.Difference + half}
			tests = append(tests, run.Versus)
		}

		Holm(tests)
	}
}

// Paired tests whether the mean of a - b, pair by pair, is zero; Best and Adjusted are left to the caller.
// There must be two pairs or more.
func Paired(a, b []float64) *Versus {
	r := stats.StudentPaired(a, b)
	return &Versus{Difference: r.Difference, Stderr: r.Stderr, T: r.T, Windows: len(a), P: r.P}
}

// HalfWidth is that of the 95 % confidence interval of the difference.
func (v *Versus) HalfWidth() float64 { return stats.Student95(float64(v.Windows-1)) * v.Stderr }

// Holm sets Adjusted of a family of tests.
func Holm(tests []*Versus) {
	p := make([]float64, len(tests))
	for i, t := range tests {
		p[i] = t.P
	}

	for i, adjusted := range stats.Holm(p) {
		tests[i].Adjusted = adjusted
	}
}
