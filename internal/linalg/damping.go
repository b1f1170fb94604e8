package linalg

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/kernels"
)

// DefaultDamping is the share of the mean diagonal that [Solver.Damped] adds at first.
const DefaultDamping = 0.01

// MaxDamping is the largest share tried.
const MaxDamping = 1.0

// Damping says how a factorisation was made possible.
type Damping struct {
	Share float64 `json:"share"` // of the mean of the diagonal
	Added float64 `json:"added"` // to every element of the diagonal
	Tries int     `json:"tries"` // factorisations attempted; 1 if the first damping did
}

// Damped factors h + λ·mean(diag h)·I, and tries again with ten times λ, up to [MaxDamping], while the matrix
// is not positive definite. share is the first λ; 0 means [DefaultDamping]. fill writes the matrix to be
// factored, before any damping, and is called once per try, since factorisations work in place; factor is
// [Solver.InverseFactor], or a Cholesky factorisation.
//
// The error wraps [ErrNonFinite] if the diagonal is not finite, else [ErrNotPositive], with the damping reached.
func (s Solver) Damped(h Matrix, share float64, fill func(h Matrix), factor func(h Matrix) error) (Damping, error) {
	h.checkSquare()
	if share == 0 {
		share = DefaultDamping
	}

	if !(share > 0 && share <= MaxDamping) {
		return Damping{}, fmt.Errorf("damping %g: want a share of the mean diagonal above 0, at most %g", share,
			MaxDamping)
	}

	d := Damping{Share: share}
	for {
		fill(h) // the try before has spoilt it
		mean, err := meanDiagonal(h)
		if err != nil {
			return d, err
		}

		d.Tries++
		d.Added = d.Share * mean
		for i := range h.Rows {
			h.Data[i*h.Stride+i] += d.Added
		}
		if err = factor(h); err == nil {
			return d, nil
		}
		if !errors.Is(err, ErrNotPositive) || d.Share >= MaxDamping {
			return d, fmt.Errorf("with damping %g: %w", d.Share, err)
		}

		d.Share = min(d.Share*10, MaxDamping)
	}
}

func meanDiagonal(h Matrix) (float64, error) {
	sum := 0.0
	for i := range h.Rows {
		v := h.At(i, i)
		if v-v != 0 {
			return 0, fmt.Errorf("%w: %v on the diagonal, row %d", ErrNonFinite, v, i)
		}
		sum += v
	}
	return sum / float64(max(1, h.Rows)), nil
}

// DampedInverseFactor writes the upper triangular U with (H + damping)⁻¹ = UᵀU to dst, an F32 matrix on a host
// device, for a symmetric F32 or F64 matrix H there; dst may be H. The work is done in float64, in n² values of
// scratch memory, so that U differs from the exact factor by little more than its rounding to float32, whatever
// the condition. See [Solver.Damped].
func (s Solver) DampedInverseFactor(dst, h kernels.Mat, share float64) (Damping, error) {
	if h.Rows != h.Cols || dst.Rows != h.Rows || dst.Cols != h.Cols {
		panic("linalg: matrix is not square")
	}
	work := newSpaced(h.Rows, h.Rows)
	d, err := s.Damped(work, share, func(w Matrix) { fillUpper(w, h) }, s.InverseFactor)
	if err == nil {
		work.ToF32(dst)
	}
	return d, err
}

// fillUpper copies the upper triangle.
func fillUpper(w Matrix, h kernels.Mat) {
	for i := range w.Rows {
		row := w.Row(i)[i:]
		if h.DType() == kernels.F64 {
			copy(row, h.Buf.F64()[h.Off+i*h.Stride+i:])
			continue
		}

		for j, v := range h.RowF32(i)[i:] {
			row[j] = float64(v)
		}
	}
}
