package linalg

import (
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
)

// SVD returns the thin singular value decomposition a = u·diag(values)·vᵀ: u [m, k] and v [n, k] with
// orthonormal columns, k = min(m, n), values in descending order. a is left alone. Values are good to a few
// units of rounding of the largest one, and columns are orthonormal to rounding, whatever the rank. The larger
// of the two sides is first reduced by QR; the square rest is split into an orthogonal factor and a positive
// semidefinite one (QDWH: Nakatsukasa and Higham, SIAM J. Sci. Comput. 35, 2013), whose eigenvectors are found
// by divide and conquer. The error wraps [ErrNonFinite] or [ErrNoConvergence].
func (s Solver) SVD(a Matrix) (u Matrix, values []float64, v Matrix, err error) {
	if a.Rows < a.Cols {
		v, values, u, err = s.SVD(a.T())
		return u, values, v, err
	}

	if err := a.CheckFinite(); err != nil {
		return Matrix{}, nil, Matrix{}, err
	}

	scale := a.MaxAbs()
	if scale == 0 {
		scale = 1
	}

	// As for eigenvalues: products of elements must neither overflow nor vanish.
	work := a.Clone()
	work.divide(scale)

	var q Matrix
	if a.Rows > a.Cols {
		if q, work, err = s.QR(work); err != nil {
			return Matrix{}, nil, Matrix{}, err
		}
	}

	if u, values, v, err = s.svdSquare(work); err != nil {
		return Matrix{}, nil, Matrix{}, err
	}

	if a.Rows > a.Cols {
		left := New(a.Rows, a.Cols)
		s.Mul(left, q, u, Product{})
		u = left
	}

	for i := range values {
		values[i] *= scale
	}

	return u, values, v, nil
}

// jacobiSize is the size up to which singular values are found by rotations.
const jacobiSize = 32

func (s Solver) svdSquare(a Matrix) (u Matrix, values []float64, v Matrix, err error) {
	if a.Rows <= jacobiSize {
		return s.jacobi(a)
	}

	orth, err := s.polar(a)
	if err != nil {
		return Matrix{}, nil, Matrix{}, err
	}

	// A = U·P with P = Uᵀ·A symmetric but for rounding, and its eigenvectors W: A = (U·W)·Λ·Wᵀ.
	n := a.Rows
	p := New(n, n)
	s.Mul(p, orth, a, Product{TransA: true})
	for i := range n {
		for j := range i {
			p.Set(i, j, (p.At(i, j)+p.At(j, i))/2)
		}
	}

	ascending, w, err := s.SymEigen(p)
	if err != nil {
		return Matrix{}, nil, Matrix{}, err
	}

	return s.fromPolar(orth, ascending, w)
}

// fromPolar turns the order round, and the signs of values that rounding has made negative.
func (s Solver) fromPolar(orth Matrix, ascending []float64,
	w Matrix,
) (u Matrix, values []float64, v Matrix, err error) {
	n := orth.Rows
	sign := make([]float64, n)
	values = make([]float64, n)
	for i, x := range ascending {
		values[n-1-i], sign[n-1-i] = math.Abs(x), math.Copysign(1, x)
	}

	v = New(n, n)
	for i := range n {
		row, to := w.Row(i), v.Row(i)
		for j := range to {
			to[j] = row[n-1-j]
		}
	}

	u = New(n, n)
	s.Mul(u, orth, v, Product{})

	for i := range n {
		for j, f := range sign {
			u.Data[i*n+j] *= f
		}
	}

	sortColumns(values, u, v) // values near zero may have changed places
	return u, values, v, nil
}

// sortColumns brings values into descending order, and the columns of u and v along.
func sortColumns(values []float64, u, v Matrix) {
	if slices.IsSortedFunc(values, func(a, b float64) int { return compareDown(a, b) }) {
		return
	}

	order := ascending(values)
	slices.Reverse(order)
	old := slices.Clone(values)
	for i, from := range order {
		values[i] = old[from]
	}

	for _, m := range []Matrix{u, v} {
		row := make([]float64, m.Cols)
		for i := range m.Rows {
			copy(row, m.Row(i))
			for j, from := range order {
				m.Set(i, j, row[from])
			}
		}
	}
}

func compareDown(a, b float64) int {
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	}
	return 0
}

// jacobi rotates rows of aᵀ until they are orthogonal.
func (s Solver) jacobi(a Matrix) (u Matrix, values []float64, v Matrix, err error) {
	n := a.Rows
	cols, w := a.T(), Identity(n)
	const sweeps = 60 // about six are usual
	for sweep := 0; ; sweep++ {
		if sweep == sweeps {
			return Matrix{}, nil, Matrix{}, ErrNoConvergence
		}
		if !jacobiSweep(cols, w) {
			break
		}
	}

	values = make([]float64, n)
	for i := range n {
		values[i] = cols.Sub(i, i+1, 0, n).Norm()
	}

	return s.fromColumns(cols, w, values)
}

// jacobiSweep rotates every pair of rows once, and reports whether any needed it. Columns below rounding of the
// largest count as zero.
func jacobiSweep(cols, w Matrix) (changed bool) {
	n := cols.Rows
	floor := cols.Norm() * epsilon
	floor *= floor // squares are compared with it
	for i := range n {
		for j := i + 1; j < n; j++ {
			x, y := cols.Row(i), cols.Row(j)
			xx := kernel.dot(x, x)
			yy := kernel.dot(y, y)
			xy := kernel.dot(x, y)
			if xx <= floor || yy <= floor || math.Abs(xy) <= 8*epsilon*math.Sqrt(xx)*math.Sqrt(yy) {
				continue
			}

			changed = true
			zeta := (yy - xx) / (2 * xy)
			t := math.Copysign(1, zeta) / (math.Abs(zeta) + math.Hypot(1, zeta))
			c := 1 / math.Hypot(1, t)
			kernel.rotate(x, y, c, -c*t)
			kernel.rotate(w.Row(i), w.Row(j), c, -c*t)
		}
	}

	return changed
}

// fromColumns makes u of orthogonal columns, given as rows; those of values that are zero to rounding are found by QR.
func (s Solver) fromColumns(cols, w Matrix, values []float64) (Matrix, []float64, Matrix, error) {
	n := cols.Rows
	order := ascending(values)
	slices.Reverse(order)
	sorted := New(n, n)
	right := New(n, n)
	u := New(n, n)
	out := make([]float64, n)
	rank := 0
	for i, from := range order {
		out[i] = values[from]
		copy(right.Row(i), w.Row(from))
		// Divided by a value of rounding size, a column would be noise, and not orthogonal to the others.
		if out[i] <= 4*epsilon*float64(n)*out[0] {
			continue
		}

		rank = i + 1
		for j, x := range cols.Row(from) {
			sorted.Set(j, i, x/out[i])
		}
	}

	q, _, err := s.QR(sorted)
	if err != nil {
		return Matrix{}, nil, Matrix{}, err
	}

	// QR turns signs as it likes, so of its columns only those beyond the rank are taken.
	u.Copy(q)
	u.Sub(0, n, 0, rank).Copy(sorted.Sub(0, n, 0, rank))
	return u, out, right.T(), nil
}

// polar returns the orthogonal polar factor of a square matrix whose largest element is at most about 1, by the
// QR-based dynamically weighted Halley iteration. Of a matrix that is singular to rounding, it is that of one a
// few roundings away.
func (s Solver) polar(a Matrix) (Matrix, error) {
	x := a.Clone()
	norm := x.Norm()
	if norm == 0 {
		return Identity(a.Rows), nil
	}

	least, err := s.leastValue(x)
	if err != nil {
		return Matrix{}, err
	}

	// The polar factor of a singular matrix is not unique, and the iteration would stall on values that are 0: signs of
	// the size of rounding make the matrix regular.
	if least < 1e-15*norm {
		signs := rng.Sketch(1)
		f := 4 * epsilon * norm / math.Sqrt(float64(a.Rows))
		for i := range x.Data {
			x.Data[i] += f * signs.Sign(uint64(i))
		}
		if least, err = s.leastValue(x); err != nil {
			return Matrix{}, err
		}
	}

	x.divide(norm)
	l := max(least/norm, 1e-25)
	const most = 12 // seven are enough for any matrix
	for range most {
		if math.Abs(1-l) < 1e-15 {
			return s.polish(x)
		}
		if err := s.stopped(); err != nil {
			return Matrix{}, err
		}
		if l, err = s.halley(x, l); err != nil {
			return Matrix{}, err
		}
	}

	return Matrix{}, fmt.Errorf("polar factor: %w", ErrNoConvergence)
}

// leastValue is a lower bound of the smallest singular value; 0 if the matrix is singular.
func (s Solver) leastValue(a Matrix) (float64, error) {
	_, r, err := s.QR(a)
	if err != nil {
		return 0, err
	}

	for i := range r.Rows {
		if r.At(i, i) == 0 {
			return 0, nil
		}
	}

	s.triInverse(r, true)
	norm := r.Norm()
	if norm-norm != 0 {
		return 0, nil
	}

	return 1 / norm, nil
}

// halley makes one step on x, whose singular values lie in [l, 1], and returns the new l.
func (s Solver) halley(x Matrix, l float64) (float64, error) {
	l2 := l * l
	d := math.Cbrt(4 * (1 - l2) / (l2 * l2))
	root := math.Sqrt(1 + d)
	a := root + math.Sqrt(8-4*d+8*(2-l2)/(l2*root))/2

	b := (a - 1) * (a - 1) / 4
	c := a + b - 1
	// Cholesky is cheaper, but squares the condition of √c·X, which only small c allow.
	var err error
	if c > 100 {
		err = s.halleyQR(x, a, b, c)
	} else {
		err = s.halleyCholesky(x, a, b, c)
	}

	return min(1, l*(a+b*l2)/(1+c*l2)), err
}

// halleyQR: with [√c·X; I] = [Q₁; Q₂]·R, X becomes b/c·X + (a - b/c)/√c·Q₁·Q₂ᵀ.
func (s Solver) halleyQR(x Matrix, a, b, c float64) error {
	n := x.Rows
	stack := New(2*n, n)
	top := stack.Sub(0, n, 0, n)
	top.Copy(x)
	top.Scale(math.Sqrt(c))
	for i := range n {
		stack.Set(n+i, i, 1)
	}

	q, _, err := s.QR(stack)
	if err != nil {
		return err
	}

	f := (a - b/c) / math.Sqrt(c)
	q1 := q.Sub(0, n, 0, n)
	q1.Scale(f)
	x.Scale(b / c)
	s.Mul(x, q1, q.Sub(n, 2*n, 0, n), Product{TransB: true, Accumulate: true})

	return nil
}

// halleyCholesky: with I + c·XᵀX = L·Lᵀ, X becomes b/c·X + (a - b/c)·X·L⁻ᵀ·L⁻¹.
func (s Solver) halleyCholesky(x Matrix, a, b, c float64) error {
	n := x.Rows
	z := newSpaced(n, n)
	y := x.Clone()
	y.Scale(math.Sqrt(c))
	s.run(product{dst: z, a: operand{y, true}, b: operand{y, false}, overwrite: true, dstShape: below}, n)
	for i := range n {
		z.Data[i*z.Stride+i]++
	}
	if err := s.Cholesky(z, false); err != nil {
		return err
	}

	y.Copy(x)
	y.Scale(a - b/c)
	s.triSolve(z, y, Triangle{Right: true, Trans: true})
	s.triSolve(z, y, Triangle{Right: true})
	x.Scale(b / c)
	for i := range n {
		kernel.axpy(x.Row(i), 1, y.Row(i))
	}

	return nil
}

// polish makes Newton-Schulz steps, X·(3I - XᵀX)/2, each of which squares what is left of the distance from
// orthogonality: one as a rule, more where rounding has kept the iteration before from its end, which happens
// with nearly singular matrices.
func (s Solver) polish(x Matrix) (Matrix, error) {
	n := x.Rows
	const most = 60 // a singular value of 1e-10 needs so many to grow to 1
	for range most {
		if err := s.stopped(); err != nil {
			return Matrix{}, err
		}

		g, y := New(n, n), New(n, n)
		s.Mul(g, x, x, Product{TransA: true, Minus: true})
		for i := range n {
			g.Data[i*n+i]++
		}

		distance := g.MaxAbs()
		for i := range n {
			g.Data[i*n+i] += 2
		}

		s.Mul(y, x, g, Product{})
		y.Scale(0.5)
		x = y
		if distance < 1e-9 {
			return x, nil
		}
	}

	return Matrix{}, fmt.Errorf("polar factor: %w", ErrNoConvergence)
}
