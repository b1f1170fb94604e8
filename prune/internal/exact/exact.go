// Package exact gives the weights that a mask keeps the values by which the outputs of a matrix change least: the least
// squares that SparseGPT approaches from left to right and ADMM by iteration, solved for each row (OPTIMA,
// arXiv:2512.13886, by an iterative solver).
//
// # What is computed
//
// With the damped Hessian A = H + λI, a row w, its kept columns K and pruned ones P, the new row w' is 0 in P and
// minimises (w' - w)·A·(w' - w)ᵀ. Every row has another mask, and so a system of its own, of which there are two forms
// with the same solution:
//
//	w'_K = w_K + z,         A_KK·z = A_KP·w_P
//	w'_K = w_K - y·B_PK,    B_PP·y = w_P,   B = A⁻¹
//
// The second one is of the size of what goes; B is computed once for all rows. Each row takes the form whose system is
// smaller, at most half of the inputs, which costs a third of the cube of its size. Rows are solved side by side, in
// float64, by Cholesky factors.
package exact

import (
	"fmt"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Job is one matrix. All matrices are dense and in host memory.
type Job struct {
	W       kernels.Mat   // F32 [out, in], overwritten
	H       linalg.Matrix // [in, in] symmetric, a multiple of Σ x·xᵀ; its diagonal has no zero
	Mask    kernels.Mat   // U8 [out, in], 1 = kept
	Damping float64       // λ as a fraction of the mean of the diagonal; it grows tenfold while A cannot be factored

	Threads int
	Device  kernels.Device // that A is factored and inverted on where it is large; nil: the host
	Stop    func() error   // asked between rows; may be nil
}

// rowsBetween is how many rows are solved before the caller is asked whether to go on.
const rowsBetween = 256

// Run replaces the weights, and says with what damping.
func (j Job) Run() (linalg.Damping, error) {
	n := j.W.Cols
	s := linalg.Solver{Threads: j.Threads, Device: j.Device, Stop: j.Stop}

	b := linalg.New(n, n)
	d, err := s.Damped(b, j.Damping, func(m linalg.Matrix) { m.Copy(j.H) },
		func(m linalg.Matrix) error { return s.Cholesky(m, true) })
	if err != nil {
		return d, err
	}
	// Rows that lose more than they keep need no inverse.
	if j.anyMostlyKept() {
		if err := s.CholeskyInverse(b, true); err != nil {
			return d, err
		}
	}

	for lo := 0; lo < j.W.Rows; lo += rowsBetween {
		if j.Stop != nil {
			if err := j.Stop(); err != nil {
				return d, err
			}
		}

		hi := min(lo+rowsBetween, j.W.Rows)
		faults := make([]error, hi-lo)
		mmapsafe.EachWith(j.Threads, hi-lo, func() *row { return &row{Job: j, added: d.Added, inverse: b} },
			func(r *row, i int) { faults[i] = r.solve(lo + i) })
		for i, err := range faults {
			if err != nil {
				return d, fmt.Errorf("output %d: %w", lo+i, err)
			}
		}
	}

	j.W.Buf.Changed()
	return d, nil
}

// anyMostlyKept reports whether there is a row that keeps as many weights as it loses.
func (j Job) anyMostlyKept() bool {
	for i := range j.W.Rows {
		if 2*kept(j.Mask.RowU8(i)) >= j.W.Cols {
			return true
		}
	}
	return false
}

func kept(mask []uint8) (n int) {
	for _, k := range mask {
		n += int(k)
	}
	return n
}

// row is the memory that rows share one after the other.
type row struct {
	Job
	added   float64 // to the diagonal of H
	inverse linalg.Matrix

	stay, gone []int
	space      []float64
	right      []float64
}

// solve does one row.
func (r *row) solve(i int) error {
	r.stay, r.gone = r.stay[:0], r.gone[:0]
	for k, keep := range r.Mask.RowU8(i) {
		if keep != 0 {
			r.stay = append(r.stay, k)
		} else {
			r.gone = append(r.gone, k)
		}
	}

	w := r.W.RowF32(i)
	defer func() {
		for _, k := range r.gone {
			w[k] = 0
		}
	}()
	switch {
	case len(r.gone) == 0 || len(r.stay) == 0:
		return nil
	case len(r.gone) <= len(r.stay):
		return r.byInverse(w)
	}
	return r.byHessian(w)
}

// byInverse solves for what goes.
func (r *row) byInverse(w []float32) error {
	y := r.right[:0]
	for _, k := range r.gone {
		y = append(y, float64(w[k]))
	}
	r.right = y
	if err := r.system(r.inverse, r.gone, 0, y); err != nil {
		return err
	}

	for _, k := range r.stay {
		sum := 0.0
		b := r.inverse.Row(k)
		for a, p := range r.gone {
			sum += y[a] * b[p]
		}
		w[k] = float32(float64(w[k]) - sum)
	}
	return nil
}

// byHessian solves for what stays.
func (r *row) byHessian(w []float32) error {
	z := r.right[:0]
	for _, k := range r.stay {
		sum := 0.0
		h := r.H.Row(k)
		for _, p := range r.gone {
			sum += h[p] * float64(w[p])
		}
		z = append(z, sum)
	}
	r.right = z
	if err := r.system(r.H, r.stay, r.added, z); err != nil {
		return err
	}

	for a, k := range r.stay {
		w[k] = float32(float64(w[k]) + z[a])
	}
	return nil
}

// system overwrites x with the solution of M·y = x, M the rows and columns of a matrix, with an addition to the
// diagonal.
func (r *row) system(of linalg.Matrix, cols []int, added float64, x []float64) error {
	n := len(cols)
	if len(r.space) < n*n {
		r.space = make([]float64, n*n)
	}

	m := linalg.Of(r.space, n, n)
	for a, k := range cols {
		src, dst := of.Row(k), m.Row(a)[:a+1]
		for b := range dst {
			dst[b] = src[cols[b]] // the lower triangle is all that is read
		}
		dst[a] += added
	}

	s := linalg.Solver{Threads: 1}
	if err := s.Cholesky(m, false); err != nil {
		return err
	}
	return s.CholeskySolve(m, linalg.Of(x, n, 1), false)
}
