package linalg

import (
	"errors"
	"math"

	"github.com/modelcompress/compress/internal/mmapsafe"
)

// ErrNoConvergence is the error of an iteration that does not end, which finite matrices are not known to cause.
var ErrNoConvergence = errors.New("iteration does not converge")

// SymEigen returns the eigenvalues of a symmetric matrix, of which the lower triangle alone is read, in
// ascending order, and the eigenvectors as the columns of v: a = v·diag(values)·vᵀ. a is left alone. The matrix
// is brought to tridiagonal form, whose eigenvectors are found by divide and conquer. The signs of eigenvectors
// are arbitrary but always the same. The error wraps [ErrNonFinite] or [ErrNoConvergence].
func (s Solver) SymEigen(a Matrix) (values []float64, v Matrix, err error) {
	t, err := s.tridiagonal(a)
	if err != nil {
		return nil, Matrix{}, err
	}

	rows, err := s.divide(t.d, t.e)
	if err != nil {
		return nil, Matrix{}, err
	}

	v = rows.T()
	s.reflect(t.h, v, false)
	t.unscale()

	return t.d, v, nil
}

// SymEigenvalues returns the eigenvalues alone; see [Solver.SymEigen].
func (s Solver) SymEigenvalues(a Matrix) ([]float64, error) {
	t, err := s.tridiagonal(a)
	if err != nil {
		return nil, err
	}

	if err := implicitQL(t.d, t.e, Matrix{}); err != nil {
		return nil, err
	}

	sortValues(t.d)
	t.unscale()
	return t.d, nil
}

// tridiag is a symmetric matrix in tridiagonal form: scale·H·T·Hᵀ.
type tridiag struct {
	d, e  []float64 // diagonal, and what is beside it
	h     reflectors
	scale float64
}

func (t *tridiag) unscale() {
	for i := range t.d {
		t.d[i] *= t.scale
	}
}

// tridiagonal reduces a, scaled so that its largest element is 1. Reflections are gathered in blocks: the
// trailing matrix is updated once per block, by a product, and read once per reflection.
func (s Solver) tridiagonal(a Matrix) (*tridiag, error) {
	a.checkSquare()
	n := a.Rows
	w := newSpaced(n, n)
	copyTriangle(w, a, false)
	if err := w.CheckFinite(); err != nil {
		return nil, err
	}

	t := &tridiag{d: make([]float64, n), e: make([]float64, max(0, n-1)), scale: w.MaxAbs()}
	if t.scale == 0 {
		t.scale = 1
	}

	// Scaled, so that squares of elements neither overflow nor vanish.
	w.divide(t.scale)
	t.h = reflectors{v: newSpaced(n, max(0, n-2)), offset: 1}

	// The last two columns have nothing below the subdiagonal to reflect away.
	for j := 0; j < n-2; j += qrBlock {
		if err := s.stopped(); err != nil {
			return nil, err
		}
		s.tridiagonalBlock(t, w, j, min(qrBlock, n-2-j))
	}

	for i := max(0, n-2); i < n; i++ {
		t.d[i] = w.At(i, i)
	}
	if n > 1 {
		t.e[n-2] = w.At(n-1, n-2)
	}

	return t, nil
}

func (a Matrix) divide(f float64) {
	for i := range a.Rows {
		for j := range a.Row(i) {
			a.Data[i*a.Stride+j] /= f
		}
	}
}

// tridiagonalBlock reduces columns [j, j+count). Rows of v and w are columns of the update A - V·Wᵀ - W·Vᵀ that is due.
func (s Solver) tridiagonalBlock(t *tridiag, a Matrix, j, count int) {
	n := a.Rows
	v, w := New(count, n), New(count, n)
	taus := make([]float64, count)
	col, partial := make([]float64, n), New(symBands, n)

	// a itself stays as it was at the beginning of the block: column i is brought up to date when its turn comes, and
	// so is the product with a (LAPACK's latrd). Half of the work is that product, which reads a once for every column.
	for p := range count {
		i := j + p
		for r := i; r < n; r++ {
			col[r] = a.At(r, i)
		}

		for q := range p {
			kernel.axpy(col[i:], -w.At(q, i), v.Row(q)[i:])
			kernel.axpy(col[i:], -v.At(q, i), w.Row(q)[i:])
		}

		t.d[i] = col[i]
		x := v.Row(p)
		copy(x[i+1:], col[i+1:])
		taus[p], t.e[i] = reflection(x[i+1:])
		x[i+1] = 1
		y := w.Row(p)[i+1:]
		s.symVec(y, a.Sub(i+1, n, i+1, n), x[i+1:], partial)

		for q := range p {
			vq, wq := v.Row(q)[i+1:], w.Row(q)[i+1:]
			f, g := kernel.dot(wq, x[i+1:]), kernel.dot(vq, x[i+1:])
			kernel.axpy(y, -f, vq)
			kernel.axpy(y, -g, wq)
		}

		for r := range y {
			y[r] *= taus[p]
		}

		kernel.axpy(y, -0.5*taus[p]*kernel.dot(y, x[i+1:]), x[i+1:])
	}

	t.keep(v, taus, j)
	rest := j + count
	below2 := product{dst: a.Sub(rest, n, rest, n), minus: true, dstShape: below}
	if vt, wt := v.Sub(0, count, rest, n), w.Sub(0, count, rest, n); vt.Cols > 0 {
		below2.a, below2.b = operand{vt, true}, operand{wt, false}
		s.run(below2, count)
		below2.a, below2.b = operand{wt, true}, operand{vt, false}
		s.run(below2, count)
	}
}

// keep stores the reflections of a block, given as rows of v.
func (t *tridiag) keep(v Matrix, taus []float64, j int) {
	n := v.Cols
	for p := range taus {
		for r := j + p + 1; r < n; r++ {
			t.h.v.Set(r, j+p, v.At(p, r))
		}
	}
	t.h.t = append(t.h.t, t.h.triangle(v.Sub(0, v.Rows, j+1, n), taus))
}

// symBands is how many bands of rows a symmetric product is cut into.
const symBands = 8

// symVec computes y = a·x, reading the lower triangle of a once. Bands of about equal area add into sums of their own.
func (s Solver) symVec(y []float64, a Matrix, x []float64, partial Matrix) {
	// An element below the diagonal counts for two of y, so rows can't be dealt out as they are: each band has sums of
	// its own. Their number is fixed, so that the result does not depend on the threads.
	n := len(x)
	bands := symBands
	if n < 256 {
		bands = 1
	}

	edge := func(b int) int { return int(float64(n) * math.Sqrt(float64(b)/float64(bands))) }
	mmapsafe.Each(s.workersFor(n, n, 8), bands, func(b int) {
		sum := partial.Row(b)[:n]
		clear(sum)
		for i := edge(b); i < edge(b+1); i++ {
			row := a.Row(i)[:i]
			sum[i] += a.At(i, i)*x[i] + kernel.dot(row, x[:i])
			kernel.axpy(sum[:i], x[i], row)
		}
	})

	copy(y, partial.Row(0)[:n])
	for b := 1; b < bands; b++ {
		kernel.axpy(y, 1, partial.Row(b)[:n])
	}
}

// implicitQL finds the eigenvalues of a tridiagonal matrix by QL steps with implicit shifts. The rows of z, if
// it has any, are rotated along: with the identity they become the eigenvectors. d becomes the eigenvalues, in
// no order; e is spoilt.
func implicitQL(d, e []float64, z Matrix) error {
	n := len(d)
	const most = 60 // steps per eigenvalue; about two are usual
	e = append(e[:max(0, n-1):max(0, n-1)], 0)
	norm := 0.0
	for i := range n {
		norm = max(norm, math.Abs(d[i])+math.Abs(e[i]))
	}

	for l := range n {
		for tries := 0; ; tries++ {
			m := l
			for ; m < n-1; m++ {
				if math.Abs(e[m]) <= epsilon/4*norm { // far below what the reduction to this form has rounded
					break
				}
			}

			if m == l {
				break
			}
			if tries == most {
				return ErrNoConvergence
			}

			stepQL(d, e, z, l, m)
		}
	}

	return nil
}

// epsilon is the distance from 1 to the next larger number, halved.
const epsilon = 1.0 / (1 << 53)

// stepQL makes one step on elements l to m.
func stepQL(d, e []float64, z Matrix, l, m int) {
	// Wilkinson's shift, from the leading 2×2 block; then the element that it makes is chased up by rotations.
	g := (d[l+1] - d[l]) / (2 * e[l])
	r := math.Hypot(g, 1)
	g = d[m] - d[l] + e[l]/(g+math.Copysign(r, g))

	s := 1.0
	c := 1.0
	p := 0.0
	for i := m - 1; i >= l; i-- {
		f, b := s*e[i], c*e[i]
		r = math.Hypot(f, g)
		e[i+1] = r
		if r == 0 { // the matrix falls apart here
			d[i+1] -= p
			e[m] = 0
			return
		}

		s, c = f/r, g/r
		g = d[i+1] - p
		r = (d[i]-g)*s + 2*c*b
		p = s * r
		d[i+1] = g + p
		g = c*r - b
		if z.Rows > 0 {
			kernel.rotate(z.Row(i+1), z.Row(i), c, s)
		}
	}

	d[l] -= p
	e[l] = g
	e[m] = 0
}
