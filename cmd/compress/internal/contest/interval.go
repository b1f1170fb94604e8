package contest

import "math"

// Paired tests whether the mean of a - b, pair by pair, is zero; Best and Adjusted are left to the caller. There must be two
// pairs or more.
func Paired(a, b []float64) *Versus { return paired(a, b) }

// Holm sets Adjusted of a family of tests.
func Holm(tests []*Versus) { holm(tests) }

// HalfWidth is that of the 95 % confidence interval of the difference.
func (v *Versus) HalfWidth() float64 { return quantile95(float64(v.Windows-1)) * v.Stderr }

// quantile95 is the t that 5 % of Student's distribution with v degrees of freedom exceed on either side together.
func quantile95(v float64) float64 {
	lo, hi := 1.0, 13.0 // 12.7 with 1 degree of freedom, 1.96 with many
	for hi-lo > 1e-12*hi {
		if mid := (lo + hi) / 2; mid == lo || mid == hi {
			break
		} else if studentP(mid, v) > 0.05 {
			lo = mid
		} else {
			hi = mid
		}
	}
	return math.Max(lo, hi)
}
