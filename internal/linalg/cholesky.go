package linalg

import (
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/linalg/internal/remote"
)

// Ways of failing of factorisations and solves; each is wrapped with a row.
var (
	// ErrNotPositive is the error of a matrix that is not positive definite to working precision.
	ErrNotPositive = errors.New("matrix is not positive definite")
	// ErrSingular is the error of a triangular factor with a zero on its diagonal.
	ErrSingular = errors.New("matrix is singular")
)

// PivotError is the error of a factorisation that met a pivot that is not positive. It unwraps to [ErrNotPositive].
type PivotError struct {
	Row   int     // of the pivot
	Pivot float64 // its value; NaN if the matrix holds values that are not finite, or if a device factored it
}

// Error implements error.
func (e *PivotError) Error() string {
	return fmt.Sprintf("%v: pivot %g in row %d", ErrNotPositive, e.Pivot, e.Row)
}

// Unwrap returns [ErrNotPositive].
func (e *PivotError) Unwrap() error { return ErrNotPositive }

func singular(row int) error { return fmt.Errorf("%w: zero on the diagonal, row %d", ErrSingular, row) }

// Cholesky overwrites the named triangle of a symmetric matrix, which alone is read, with its factor: L with A = L·Lᵀ
// (lower) or R with A = Rᵀ·R (upper). The other triangle is zeroed. The error is a [*PivotError]; a is then spoilt.
func (s Solver) Cholesky(a Matrix, upper bool) error {
	a.checkSquare()

	if d := remote.Find(s.Device, "Cholesky", a.Rows, a.Rows); d != nil {
		if done, err := choleskyThere(d, a, upper); done {
			return err
		}
	}

	if err := s.cholesky(a, upper, 0); err != nil {
		return err
	}

	a.clearTriangle(!upper)
	return nil
}

// cholesky halves the matrix: factor, solve, update, factor. Recursion instead of a loop over panels turns nearly all
// of the work into products of large matrices at every size, without a block size to tune.
func (s Solver) cholesky(a Matrix, upper bool, row int) error {
	n := a.Rows
	if n <= triBase {
		return choleskyBase(a, upper, row)
	}
	if err := s.stopped(); err != nil {
		return err
	}

	h := half(n)
	first := a.Sub(0, h, 0, h)
	if err := s.cholesky(first, upper, row); err != nil {
		return err
	}

	second := a.Sub(h, n, h, n)
	if upper {
		off := a.Sub(0, h, h, n)
		s.triSolve(first, off, Triangle{Upper: true, Trans: true})
		s.rankUpdate(second, off, above, true)
	} else {
		off := a.Sub(h, n, 0, h)
		s.triSolve(first, off, Triangle{Trans: true, Right: true})
		s.rankUpdate(second, off, below, false)
	}

	return s.cholesky(second, upper, row+h)
}

func choleskyBase(a Matrix, upper bool, row int) error {
	n := a.Rows
	// One loop for both triangles: an upper factor is the lower one with rows and columns exchanged.
	step := a.Stride
	across := 1 // element (i, j) of the lower factor is at i·step + j·across
	if upper {
		step, across = 1, a.Stride
	}

	for j := range n {
		d := a.Data[j*a.Stride+j]
		for p := range j {
			v := a.Data[j*step+p*across]
			d -= v * v
		}

		if !(d > 0) || math.IsInf(d, 1) {
			return &PivotError{row + j, d}
		}

		d = math.Sqrt(d)
		a.Data[j*a.Stride+j] = d

		for i := j + 1; i < n; i++ {
			v := a.Data[i*step+j*across]
			for p := range j {
				v -= a.Data[i*step+p*across] * a.Data[j*step+p*across]
			}
			a.Data[i*step+j*across] = v / d
		}
	}

	return nil
}

// CholeskyInverse overwrites a lower or upper Cholesky factor with the whole symmetric inverse of the matrix it
// came from. The error wraps [ErrSingular].
func (s Solver) CholeskyInverse(factor Matrix, upper bool) error {
	if d := remote.Find(s.Device, "CholeskyInverse", factor.Rows, factor.Rows); d != nil &&
		factor.regular(factor.Rows) {
		if x, done, err := d.Solve(factor.Rows, lower(factor, upper), factor.Rows, remote.Unit); done {
			if err == nil {
				factor.Copy(Of(x, factor.Rows, factor.Rows))
				factor.Symmetrize()
			}
			return err
		}
	}

	if err := s.TriInverse(factor, upper); err != nil {
		return err
	}

	factor.clearTriangle(!upper)
	inverse := factor.Clone()
	if upper { // A⁻¹ = R⁻¹·R⁻ᵀ
		s.triMul(inverse, factor, Triangle{Upper: true, Trans: true, Right: true})
	} else { // A⁻¹ = L⁻ᵀ·L⁻¹
		s.triMul(inverse, factor, Triangle{Trans: true})
	}

	factor.Symmetrize()
	return nil
}

// CholeskySolve overwrites b with the solution of A·X = b, given a Cholesky factor of A. The error wraps [ErrSingular].
func (s Solver) CholeskySolve(factor, b Matrix, upper bool) error {
	if d := remote.Find(s.Device, "CholeskySolve", factor.Rows, b.Cols); d != nil && factor.regular(b.Rows) {
		if x, done, err := d.Solve(factor.Rows, lower(factor, upper), b.Cols, b.At); done {
			if err == nil {
				b.Copy(Of(x, b.Rows, b.Cols))
			}
			return err
		}
	}

	if err := s.TriSolve(factor, b, Triangle{Upper: upper, Trans: upper}); err != nil {
		return err
	}

	return s.TriSolve(factor, b, Triangle{Upper: upper, Trans: !upper})
}

// InverseFactor overwrites a symmetric positive definite matrix H, of which the upper triangle alone is read,
// with the upper triangular U that has H⁻¹ = UᵀU: the upper Cholesky factor of the inverse, as SparseGPT and
// GPTQ use it. The inverse is not formed: with H = V·Vᵀ, V upper triangular, U is V⁻¹, and both come out of one
// recursion of ⅔n³ operations. The lower triangle is zeroed. The error is a [*PivotError]; h is then spoilt.
func (s Solver) InverseFactor(h Matrix) error {
	h.checkSquare()

	if d := remote.Find(s.Device, "InverseFactor", h.Rows, h.Rows); d != nil {
		if done, err := inverseFactorThere(d, h); done {
			return err
		}
	}

	if err := s.inverseFactor(h, 0); err != nil {
		return err
	}

	h.clearTriangle(false)
	return nil
}

// inverseFactor: for H = [A B; Bᵀ C], U₂ is that of C, V₁₂ = B·U₂ᵀ, U₁ that of A - V₁₂·V₁₂ᵀ, and U₁₂ = -U₁·V₁₂·U₂.
func (s Solver) inverseFactor(h Matrix, row int) error {
	n := h.Rows
	if n <= triBase {
		return inverseFactorBase(h, row)
	}
	if err := s.stopped(); err != nil {
		return err
	}

	m := half(n)
	a := h.Sub(0, m, 0, m)
	b := h.Sub(0, m, m, n)
	c := h.Sub(m, n, m, n)
	if err := s.inverseFactor(c, row+m); err != nil {
		return err
	}

	// In place: U₂ stands where C was, V₁₂·U₂ where B was, and at last U₁ where A was, which completes U₁₂. Neither H
	// nor its inverse is ever there as a whole beside the factor.
	buf := scratch(m * (n - m))
	v := Of(*buf, m, n-m)
	s.triMulInto(v, c, b, Triangle{Upper: true, Trans: true, Right: true}, false)
	s.rankUpdate(a, v, above, false)
	s.triMulInto(b, c, v, Triangle{Upper: true, Right: true}, false)
	packed.Put(buf)
	if err := s.inverseFactor(a, row); err != nil {
		return err
	}

	buf = scratch(m * (n - m))
	v = Of(*buf, m, n-m)
	v.Copy(b)
	s.triMulInto(b, a, v, Triangle{Upper: true}, true)
	packed.Put(buf)

	return nil
}

// inverseFactorBase factors from the last row up, then inverts: H = R·Rᵀ with R upper triangular, whose inverse is U
// (H⁻¹ = R⁻ᵀ·R⁻¹ = Uᵀ·U). An ordinary Cholesky factor goes from the first row down, and would want the inverse of H
// first.
func inverseFactorBase(h Matrix, row int) error {
	n := h.Rows
	for j := n - 1; j >= 0; j-- {
		d := h.At(j, j)
		for _, v := range h.Row(j)[j+1:] {
			d -= v * v
		}

		// Negated, so that NaN is refused: it fails every comparison.
		if !(d > 0) || math.IsInf(d, 1) {
			return &PivotError{row + j, d}
		}

		d = math.Sqrt(d)
		h.Set(j, j, d)

		for i := range j {
			v := h.At(i, j)
			for p := j + 1; p < n; p++ {
				v -= h.At(i, p) * h.At(j, p)
			}
			h.Set(i, j, v/d)
		}
	}

	invertBase(h, true)
	return nil
}
