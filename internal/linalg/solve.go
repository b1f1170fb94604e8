package linalg

import "math"

// LeastSquares returns the x [n, p] that minimises ‖a·x - b‖ for a [m, n] of full column rank, m ≥ n, by QR.
// The error wraps [ErrNonFinite], or [ErrSingular] with the first column that depends on those before it, to
// rounding.
func (s Solver) LeastSquares(a, b Matrix) (Matrix, error) {
	if a.Rows < a.Cols || a.Rows != b.Rows {
		panic("linalg: least squares with fewer equations than unknowns, or of shapes that do not fit")
	}
	if err := b.CheckFinite(); err != nil {
		return Matrix{}, err
	}

	q, r, err := s.QR(a)
	if err != nil {
		return Matrix{}, err
	}

	// What is left of a column that depends on those before it is rounding of the largest.
	top := 0.0
	for i := range r.Rows {
		top = max(top, math.Abs(r.At(i, i)))
	}

	for i := range r.Rows {
		if r.At(i, i) <= top*epsilon*float64(a.Rows) {
			return Matrix{}, singular(i)
		}
	}

	x := New(a.Cols, b.Cols)
	s.Mul(x, q, b, Product{TransA: true})
	s.triSolve(r, x, Triangle{Upper: true})

	return x, nil
}

// Ridge returns the x [n, p] that minimises ‖a·x - b‖² + lambda·‖x‖² for lambda > 0, by QR of a over √lambda·I,
// which does not square the condition. The error wraps [ErrNonFinite], or [ErrSingular] if lambda vanishes
// against a that lacks rank.
func (s Solver) Ridge(a, b Matrix, lambda float64) (Matrix, error) {
	if !(lambda > 0) || math.IsInf(lambda, 1) || a.Rows != b.Rows {
		panic("linalg: ridge regression without a positive lambda, or of shapes that do not fit")
	}

	m, n := a.Rows, a.Cols
	stack, right := New(m+n, n), New(m+n, b.Cols)
	stack.Sub(0, m, 0, n).Copy(a)
	right.Sub(0, m, 0, b.Cols).Copy(b)
	for i := range n {
		stack.Set(m+i, i, math.Sqrt(lambda))
	}

	return s.LeastSquares(stack, right)
}
