package linalg

import "math"

// Triangle describes a triangular operand. Only the named triangle of the matrix is read.
type Triangle struct {
	Upper bool // the upper triangle holds the factor; the lower one by default
	Trans bool // the transpose of the factor is meant
	Right bool // the factor stands on the right: X·op(T) = B instead of op(T)·X = B
}

// triBase is the size up to which triangles are solved, factored and inverted element by element; everything
// else is products.
const triBase = 32

// TriSolve overwrites b with the solution X of op(T)·X = b, or of X·op(T) = b with [Triangle.Right]. The error wraps
// [ErrSingular] and names the first zero of the diagonal; b is then unchanged.
func (s Solver) TriSolve(t, b Matrix, o Triangle) error {
	t.checkSquare()
	if n := b.Rows; !o.Right && n != t.Rows || o.Right && b.Cols != t.Rows {
		panic("linalg: triangular system and right side do not fit")
	}

	for i := range t.Rows {
		if t.At(i, i) == 0 {
			return singular(i)
		}
	}

	s.triSolve(t, b, o)
	return nil
}

// lowerFirst reports whether the unknowns of the first half of the factor are found before those of the second.
func (o Triangle) lowerFirst() bool { return (o.Upper != o.Trans) == o.Right }

// triSolve halves the factor; the off-diagonal quarter becomes a product.
func (s Solver) triSolve(t, b Matrix, o Triangle) {
	n := t.Rows
	if n == 0 || b.Rows == 0 || b.Cols == 0 {
		return
	}

	if n <= triBase {
		s.triSolveBase(t, b, o)
		return
	}

	h := half(n)
	first, second := t.Sub(0, h, 0, h), t.Sub(h, n, h, n)
	off := t.Sub(h, n, 0, h)
	if o.Upper {
		off = t.Sub(0, h, h, n)
	}

	b1, b2 := b.split(h, o.Right)
	// Whichever half does not depend on the other goes first.
	if !o.lowerFirst() {
		first, second, b1, b2 = second, first, b2, b1
	}

	s.triSolve(first, b1, o)

	if o.Right {
		s.Mul(b2, b1, off, Product{TransB: o.Trans, Minus: true, Accumulate: true})
	} else {
		s.Mul(b2, off, b1, Product{TransA: o.Trans, Minus: true, Accumulate: true})
	}

	s.triSolve(second, b2, o)
}

// half is where a matrix of n rows is cut: at a multiple of the base.
func half(n int) int { return roundUp(n/2, triBase) }

// split cuts b at row h, or at column h if byCols.
func (a Matrix) split(h int, byCols bool) (first, second Matrix) {
	if byCols {
		return a.Sub(0, a.Rows, 0, h), a.Sub(0, a.Rows, h, a.Cols)
	}
	return a.Sub(0, h, 0, a.Cols), a.Sub(h, a.Rows, 0, a.Cols)
}

// tame is the product of the sizes of a small triangle and of its inverse below which multiplying with the
// inverse loses no more than two digits of the residual, and mostly nothing.
const tame = 100

// triSolveBase multiplies with the inverse of the factor. Unless that is tame, the result is corrected once
// with its residual, which makes it as good as substitution.
func (s Solver) triSolveBase(t, b Matrix, o Triangle) {
	n := t.Rows
	if b.Rows*b.Cols <= 4*n {
		substitute(t, b, o)
		return
	}

	inverse := New(n, n)
	copyTriangle(inverse, t, o.Upper)
	invertBase(inverse, o.Upper)

	if triangleNorm(t, o.Upper)*triangleNorm(inverse, o.Upper) <= tame {
		s.triMulInto(b, inverse, b, o, false) // in place, which so small a factor allows
		return
	}

	rest, x := b.Clone(), New(b.Rows, b.Cols)
	s.triMulInto(x, inverse, rest, o, false)
	s.triMulInto(b, t, x, o, true)
	for i := range b.Rows {
		kernel.axpy(rest.Row(i), 1, b.Row(i))
	}

	s.triMulInto(b, inverse, rest, o, false)
	for i := range b.Rows {
		kernel.axpy(b.Row(i), 1, x.Row(i))
	}
}

// triangleNorm is the largest sum of magnitudes of a row.
func triangleNorm(t Matrix, upper bool) float64 {
	top := 0.0
	for i := range t.Rows {
		row := t.Row(i)[:i+1]
		if upper {
			row = t.Row(i)[i:]
		}

		sum := 0.0
		for _, v := range row {
			sum += math.Abs(v)
		}

		top = max(top, sum)
	}

	return top
}

// substitute solves element by element.
func substitute(t, b Matrix, o Triangle) {
	n := t.Rows
	coefficient := func(i, j int) float64 { // of unknown j in equation i
		if o.Trans != o.Right {
			i, j = j, i
		}
		return t.At(i, j)
	}

	for q := range n {
		i := q
		if !o.lowerFirst() {
			i = n - 1 - q
		}

		for p := range q {
			j := p
			if !o.lowerFirst() {
				j = n - 1 - p
			}
			b.subtractUnknown(i, j, coefficient(i, j), o.Right)
		}

		b.divideUnknown(i, t.At(i, i), o.Right)
	}
}

func (a Matrix) subtractUnknown(i, j int, f float64, byCols bool) {
	if !byCols {
		kernel.axpy(a.Row(i), -f, a.Row(j))
		return
	}
	for r := range a.Rows {
		a.Data[r*a.Stride+i] -= f * a.Data[r*a.Stride+j]
	}
}

func (a Matrix) divideUnknown(i int, d float64, byCols bool) {
	if !byCols {
		for c := range a.Row(i) {
			a.Data[i*a.Stride+c] /= d
		}
		return
	}
	for r := range a.Rows {
		a.Data[r*a.Stride+i] /= d
	}
}

// copyTriangle copies one triangle of src with the diagonal.
func copyTriangle(dst, src Matrix, upper bool) {
	for i := range src.Rows {
		lo, hi := 0, i+1
		if upper {
			lo, hi = i, src.Cols
		}
		copy(dst.Row(i)[lo:hi], src.Row(i)[lo:hi])
	}
}

// clearTriangle zeroes what lies strictly above the diagonal, or below it.
func (a Matrix) clearTriangle(above bool) {
	for i := range a.Rows {
		if above {
			clear(a.Row(i)[min(i+1, a.Cols):])
		} else {
			clear(a.Row(i)[:min(i, a.Cols)])
		}
	}
}

// TriInverse inverts a triangular matrix in place; the other triangle is left alone. The error is that of
// [Solver.TriSolve].
func (s Solver) TriInverse(t Matrix, upper bool) error {
	t.checkSquare()
	for i := range t.Rows {
		if t.At(i, i) == 0 {
			return singular(i)
		}
	}
	s.triInverse(t, upper)
	return nil
}

// triInverse: the off-diagonal quarter of the inverse of [A 0; B C] is -C⁻¹·B·A⁻¹.
func (s Solver) triInverse(t Matrix, upper bool) {
	n := t.Rows
	if n <= triBase {
		invertBase(t, upper)
		return
	}

	h := half(n)
	a, c := t.Sub(0, h, 0, h), t.Sub(h, n, h, n)
	s.triInverse(a, upper)
	s.triInverse(c, upper)

	if upper {
		b := t.Sub(0, h, h, n)
		s.triSandwich(b, a, c, upper)
		return
	}

	b := t.Sub(h, n, 0, h)
	s.triSandwich(b, c, a, upper)
}

// triSandwich overwrites b with -x·b·y, for triangles x and y.
func (s Solver) triSandwich(b, x, y Matrix, upper bool) {
	buf := scratch(b.Rows * b.Cols)
	between := Of(*buf, b.Rows, b.Cols)
	s.triMulInto(between, y, b, Triangle{Upper: upper, Right: true}, false)
	s.triMulInto(b, x, between, Triangle{Upper: upper}, true)
	packed.Put(buf)
}

// invertBase inverts a small triangle in place, row by row.
func invertBase(t Matrix, upper bool) {
	n := t.Rows
	var row [triBase]float64
	for q := range n {
		i := q
		lo := 0
		hi := q
		if upper {
			i = n - 1 - q
			lo, hi = i+1, n
		}

		d := 1 / t.At(i, i)
		clear(row[:])

		for p := lo; p < hi; p++ { // rows p are inverted already
			f := -t.At(i, p) * d
			from, to := 0, p+1
			if upper {
				from, to = p, n
			}
			for j := from; j < to; j++ {
				row[j] += f * t.At(p, j)
			}
		}

		copy(t.Row(i)[lo:hi], row[lo:hi])
		t.Set(i, i, d)
	}
}

// triMul overwrites b with op(T)·b, or with b·op(T).
func (s Solver) triMul(t, b Matrix, o Triangle) {
	buf := scratch(b.Rows * b.Cols)
	x := Of(*buf, b.Rows, b.Cols)
	x.Copy(b)
	s.triMulInto(b, t, x, o, false)
	packed.Put(buf)
}

// triMulInto writes op(T)·b, or b·op(T), or its negative, to dst.
func (s Solver) triMulInto(dst, t, b Matrix, o Triangle, minus bool) {
	if len(b.Data) == 0 {
		return
	}

	used := below
	if o.Upper != o.Trans {
		used = above
	}

	p := product{dst: dst, minus: minus, overwrite: true}
	if o.Right {
		p.a = operand{b, false}
		p.b = operand{t, o.Trans}
		p.bShape = used
	} else {
		p.a = operand{t, o.Trans}
		p.aShape = used
		p.b = operand{b, false}
	}

	s.run(p, t.Rows)
}

// rankUpdate subtracts b·bᵀ, or bᵀ·b with trans, from the part of c that has the given shape.
func (s Solver) rankUpdate(c, b Matrix, part shape, trans bool) {
	if len(b.Data) == 0 {
		return
	}
	k := b.Cols
	if trans {
		k = b.Rows
	}
	s.run(product{dst: c, a: operand{b, trans}, b: operand{b, !trans}, minus: true, dstShape: part}, k)
}
