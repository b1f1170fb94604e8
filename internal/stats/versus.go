package stats

// Versus is the paired test of one way against the best one: Student's t on the differences of the windows' mean
// losses, as reports have it.
type Versus struct {
	Best       string  `json:"best"`
	Difference float64 `json:"nll_difference"` // mean over windows, nats per token
	Stderr     float64 `json:"stderr"`
	T          float64 `json:"t"`
	Windows    int     `json:"windows"`
	P          float64 `json:"p"`      // two-sided
	Adjusted   float64 `json:"p_holm"` // for as many comparisons as the target has (Holm, 1979)
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
