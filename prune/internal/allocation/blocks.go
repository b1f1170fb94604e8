// Package allocation has the arithmetic of allocations: how much each block or matrix loses.
package allocation

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrRange: a block would lose everything or gain weights.
var ErrRange = errors.New("allocation out of range")

// spread maps percentages to r_l = (D_l - min D)/(max D - min D)·width, less their mean; 0 where all are the same.
func spread(percent []float64, width float64) []float64 {
	lo := slices.Min(percent)
	hi := slices.Max(percent)
	mean := 0.0
	r := make([]float64, len(percent))
	for l, d := range percent {
		if hi > lo {
			r[l] = (d - lo) / (hi - lo) * width
		}
		mean += r[l] / float64(len(r))
	}

	for l := range r {
		r[l] -= mean
	}

	return r
}

// OWL spreads a sparsity over blocks by their outlier percentages:
//
//	r_l = (D_l - min D) / (max D - min D) · 2λ
//	sparsity_l = p - r_l + mean r
//
// and at least 0.01, as the published code has it. If all blocks have the same percentage, all get p. A
// sparsity of 1 or more is an error: the mean is then too close to 1 for this lambda.
func OWL(outliers []float64, p, lambda float64) ([]float64, error) {
	r := spread(outliers, 2*lambda)
	for l := range r {
		keep := r[l] + (1 - p)
		if r[l] = 1 - keep; r[l] <= 0 {
			r[l] = 0.01
		}

		if r[l] >= 1 {
			return nil, fmt.Errorf("%w: block %d would get a sparsity of %.4f; lower the sparsity or lambda", ErrRange,
				l, r[l])
		}
	}

	return r, nil
}

// Mixed gives every block an N of its own: n of m, less r_l of OWL with a width of lambda, rounded to even. It may be
// 0, which leaves the block dense.
func Mixed(outliers []float64, n, m int, lambda float64, special bool) ([]int, error) {
	all := make([]int, len(outliers))
	for l, r := range spread(outliers, lambda) {
		r = math.RoundToEven(r)
		if special && r == 1 {
			r = 2
		}
		if all[l] = n - int(r); all[l] < 0 || all[l] >= m {
			return nil, fmt.Errorf("%w: block %d would lose %d of %d; lower lambda", ErrRange, l, all[l], m)
		}
	}

	return all, nil
}

// Spectral spreads a sparsity over blocks by the exponents of their spectra: linearly between 1 - ε for the heaviest
// tail and 1 + ε for the lightest, then scaled such that all weights together lose p.
func Spectral(exponents, weights []float64, p, epsilon float64) ([]float64, error) {
	lo, hi := slices.Min(exponents), slices.Max(exponents)
	t := make([]float64, len(exponents))
	total, scaled := 0.0, 0.0
	for l, a := range exponents {
		t[l] = 1
		if hi > lo {
			t[l] = 1 - epsilon + (a-lo)/(hi-lo)*2*epsilon
		}
		total += weights[l]
		scaled += weights[l] * t[l]
	}

	for l := range t {
		if t[l] *= p * total / scaled; t[l] >= 1 {
			return nil, fmt.Errorf("%w: block %d would get a sparsity of %.4f; lower the sparsity or epsilon", ErrRange,
				l, t[l])
		}
	}

	return t, nil
}
