package spectral

import (
	"math"

	"github.com/modelcompress/compress/internal/linalg"
)

// Continual is how OPCM adds one matrix after the other.
type Continual struct {
	Alpha  float64 // fraction of the sum of the singular values that is left to what was there before
	First  float64 // how many times the first matrix counts
	Before float64 // of how many models the first one is the merge; for the length
	Lambda float64 // the sum is divided by it; 0: it gets the mean length of the matrices
}

// Continual writes OPCM's merge (Tang et al., arXiv 2501.09522, "Merging Models on the Fly Without Retraining"): of
// every further matrix τ only what does not disturb the sum U so far is added. With U's singular vectors u_i, v_i and k
// the first number of singular values that hold more than Alpha of their sum, τ loses its part between the first k
// vectors of both sides, and what it has on the diagonal, (u_iᵀ·τ·v_i)·u_i·v_iᵀ, of all others. So U and what is added
// are orthogonal. U is the published code's λ·(merged - base), whose directions do not depend on λ.
//
// The errors are those of Read and Write, of package linalg and of the solver's Stop.
func (p Parts) Continual(o Continual, s linalg.Solver) error {
	total, one := linalg.New(p.Rows, p.Cols), linalg.New(p.Rows, p.Cols)
	length, models := 0.0, 0.0

	for j := range p.N {
		if err := p.Read(j, 0, 0, one); err != nil {
			return err
		}
		count := 1.0
		if j == 0 {
			count = o.Before
		}
		length += count * one.Norm()
		models += count

		if j == 0 {
			total.Copy(one)
			total.Scale(o.First)
			continue
		}

		if total.Norm() > 0 && one.Norm() > 0 {
			if err := cleaned(one, total, o.Alpha, s); err != nil {
				return err
			}
		}
		for i, v := range one.Data {
			total.Data[i] += v
		}
		if err := stopped(s); err != nil {
			return err
		}
	}

	scale := 0.0
	switch n := total.Norm(); {
	case o.Lambda > 0:
		scale = 1 / o.Lambda
	case n > 0:
		scale = length / models / n
	}
	total.Scale(scale)
	return p.Write(0, 0, total)
}

// cleaned takes from a matrix what would disturb the sum.
func cleaned(m, total linalg.Matrix, alpha float64, s linalg.Solver) error {
	u, values, vt, err := leading(total, min(total.Rows, total.Cols), s)
	if err != nil {
		return err
	}

	k := split(values, alpha)
	if k > 0 {
		left, right := u.Sub(0, u.Rows, 0, k), vt.Sub(0, k, 0, vt.Cols)
		half := linalg.New(k, m.Cols)
		s.Mul(half, left, m, linalg.Product{TransA: true})
		core := linalg.New(k, k)
		s.Mul(core, half, right, linalg.Product{TransB: true})
		s.Mul(half, core, right, linalg.Product{})
		s.Mul(m, left, half, linalg.Product{Minus: true, Accumulate: true})
	}

	// Those of the others are orthogonal to each other and to what was taken: they are read from what is left.
	rest := len(values) - k
	if rest == 0 {
		return nil
	}
	left, right := u.Sub(0, u.Rows, k, len(values)), vt.Sub(k, len(values), 0, vt.Cols)
	half := linalg.New(rest, m.Cols)
	s.Mul(half, left, m, linalg.Product{TransA: true})
	for i := range rest {
		d := 0.0
		for c, v := range half.Row(i) {
			d += v * right.At(i, c)
		}
		for c := range half.Row(i) {
			half.Set(i, c, d*right.At(i, c))
		}
	}
	s.Mul(m, left, half, linalg.Product{Minus: true, Accumulate: true})
	return nil
}

// split is the published code's number of leading directions: the first at which the sum of the singular values, with
// that one, is more than a fraction of all.
func split(values []float64, alpha float64) int {
	all, sum := 0.0, 0.0
	for _, v := range values {
		all += math.Abs(v)
	}
	for i, v := range values {
		if sum += math.Abs(v); sum > alpha*all {
			return i
		}
	}
	return 0
}
