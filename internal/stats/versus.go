package stats

import (
	"encoding/json"
	"math"
)

// Versus is the paired test of one way against the best one: Student's t on the differences of the windows' mean
// losses, as reports have it.
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

// NewVersus tests whether the mean of a - b, pair by pair, is zero; Best and Adjusted are left to the caller.
// There must be two pairs or more.
func NewVersus(a, b []float64) *Versus {
	r := StudentPaired(a, b)
	return &Versus{Difference: r.Difference, Stderr: r.Stderr, T: r.T, Windows: len(a), P: r.P}
}

// HalfWidth is that of the 95 % confidence interval of the difference.
func (v *Versus) HalfWidth() float64 { return Student95(float64(v.Windows-1)) * v.Stderr }

// AdjustHolm sets Adjusted of a family of tests; see [Holm].
func AdjustHolm(tests []*Versus) {
	p := make([]float64, len(tests))
	for i, t := range tests {
		p[i] = t.P
	}

	for i, adjusted := range Holm(p) {
		tests[i].Adjusted = adjusted
	}
}
