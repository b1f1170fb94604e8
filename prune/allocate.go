package prune

import (
	"fmt"
	"math"
)

// Allocation says how the sparsity is spread over the blocks. The zero Allocation is uniform.
type Allocation struct {
	Name   string  `json:"name"`             // Uniform or OWL; empty: Uniform
	M      float64 `json:"m,omitempty"`      // OWL: a score above M times the block's mean is an outlier; 0 means 5
	Lambda float64 `json:"lambda,omitempty"` // OWL: how far blocks may differ from each other, at most 2·Lambda; 0 means 0.08
}

// The names of allocations.
const (
	Uniform = "uniform" // every block loses the same share
	OWL     = "owl"     // blocks with more outliers among the scores keep more (arXiv:2310.05175)
)

func (a *Allocation) setDefaults() {
	if a.Name == "" {
		a.Name = Uniform
	}
	if a.Name == OWL && a.M == 0 {
		a.M = 5
	}
	if a.Name == OWL && a.Lambda == 0 {
		a.Lambda = 0.08
	}
}

func (a Allocation) validate() error {
	switch a.Name {
	case "", Uniform:
		if a.M != 0 || a.Lambda != 0 {
			return fmt.Errorf("%w: m and lambda belong to allocation %s", ErrOptions, OWL)
		}
		return nil
	case OWL:
		if !(a.M >= 0 && a.Lambda >= 0 && a.Lambda <= 0.5) || math.IsInf(a.M, 0) {
			return fmt.Errorf("%w: allocation %s with m %g and lambda %g; want m above 0 and lambda up to 0.5", ErrOptions, OWL, a.M, a.Lambda)
		}
		return nil
	}
	return fmt.Errorf("allocation %q: %w; known: %s, %s", a.Name, ErrUnknown, Uniform, OWL)
}

// owlSparsity spreads a sparsity over blocks by their outlier percentages:
//
//	r_l = (D_l - min D) / (max D - min D) · 2λ
//	sparsity_l = p - r_l + mean r
//
// and at least 0.01, as the published code has it. If all blocks have the same percentage, all get p. A sparsity of 1 or
// more is an error: the mean is then too close to 1 for this lambda.
func owlSparsity(outliers []float64, p, lambda float64) ([]float64, error) {
	lo, hi, mean := math.Inf(1), math.Inf(-1), 0.0
	for _, d := range outliers {
		lo, hi = min(lo, d), max(hi, d)
	}
	r := make([]float64, len(outliers))
	for l, d := range outliers {
		if hi > lo {
			r[l] = (d - lo) / (hi - lo) * 2 * lambda
		}
		mean += r[l] / float64(len(r))
	}
	for l := range r {
		keep := r[l] - mean + (1 - p)
		if r[l] = 1 - keep; r[l] <= 0 {
			r[l] = 0.01
		}
		if r[l] >= 1 {
			return nil, fmt.Errorf("%w: allocation %s gives block %d a sparsity of %.4f; lower the sparsity or lambda", ErrOptions, OWL, l, r[l])
		}
	}
	return r, nil
}
