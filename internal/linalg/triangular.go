package linalg

// Triangle describes a triangular operand. Only the named triangle of the matrix is read.
type Triangle struct {
	Upper bool // the upper triangle holds the factor; the lower one by default
	Trans bool // the transpose of the factor is meant
	Right bool // the factor stands on the right: X·op(T) = B instead of op(T)·X = B
}

// Blocks of triangular work: the base is done element by element, everything else by products.
const (
	triBase   = 32 // solves, factors and inverses
	triSquare = 96 // products of triangles, whose zeros are multiplied too
)

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

// triSolveBase multiplies with the inverse of the factor and corrects the result once with its residual, which makes it as
// good as substitution.
func (s Solver) triSolveBase(t, b Matrix, o Triangle) {
	n := t.Rows
	if b.Rows*b.Cols <= 4*n {
		substitute(t, b, o)
		return
	}
	factor, inverse := New(n, n), New(n, n)
	copyTriangle(factor, t, o.Upper)
	copyTriangle(inverse, t, o.Upper)
	invertBase(inverse, o.Upper)
	rest, x := b.Clone(), New(b.Rows, b.Cols)
	apply := func(dst, t, b Matrix, p Product) {
		if o.Right {
			p.TransB = o.Trans
			s.Mul(dst, b, t, p)
			return
		}
		p.TransA = o.Trans
		s.Mul(dst, t, b, p)
	}
	apply(x, inverse, rest, Product{})
	apply(rest, factor, x, Product{Minus: true, Accumulate: true})
	apply(x, inverse, rest, Product{Accumulate: true})
	b.Copy(x)
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

// TriInverse inverts a triangular matrix in place; the other triangle is left alone. The error is that of [Solver.TriSolve].
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
		s.triMul(c, b, Triangle{Upper: true, Right: true})
		s.triMul(a, b, Triangle{Upper: true})
		b.negate()
		return
	}
	b := t.Sub(h, n, 0, h)
	s.triMul(a, b, Triangle{Right: true})
	s.triMul(c, b, Triangle{})
	b.negate()
}

func (a Matrix) negate() {
	for i := range a.Rows {
		for j := range a.Row(i) {
			a.Data[i*a.Stride+j] = -a.Data[i*a.Stride+j]
		}
	}
}

// invertBase inverts a small triangle in place, row by row.
func invertBase(t Matrix, upper bool) {
	n := t.Rows
	var row [triBase]float64
	for q := range n {
		i, lo, hi := q, 0, q
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
	n := t.Rows
	if n == 0 || b.Rows == 0 || b.Cols == 0 {
		return
	}
	if n <= triSquare {
		s.triMulBase(t, b, o)
		return
	}
	h := half(n)
	first, second := t.Sub(0, h, 0, h), t.Sub(h, n, h, n)
	off := t.Sub(h, n, 0, h)
	if o.Upper {
		off = t.Sub(0, h, h, n)
	}
	b1, b2 := b.split(h, o.Right)
	if o.lowerFirst() { // what is needed of the other half must not be overwritten yet
		first, second, b1, b2 = second, first, b2, b1
	}
	s.triMul(first, b1, o)
	if o.Right {
		s.Mul(b1, b2, off, Product{TransB: o.Trans, Accumulate: true})
	} else {
		s.Mul(b1, off, b2, Product{TransA: o.Trans, Accumulate: true})
	}
	s.triMul(second, b2, o)
}

func (s Solver) triMulBase(t, b Matrix, o Triangle) {
	buf, in := scratch(t.Rows*t.Rows), scratch(b.Rows*b.Cols)
	defer packed.Put(buf)
	defer packed.Put(in)
	clear(*buf)
	full, x := Of(*buf, t.Rows, t.Rows), Of(*in, b.Rows, b.Cols)
	copyTriangle(full, t, o.Upper)
	x.Copy(b)
	if o.Right {
		s.Mul(b, x, full, Product{TransB: o.Trans})
	} else {
		s.Mul(b, full, x, Product{TransA: o.Trans})
	}
}

// rankUpdate subtracts b·bᵀ from the named triangle of c.
func (s Solver) rankUpdate(c, b Matrix, upper bool) {
	n := c.Rows
	if n <= triSquare {
		buf := scratch(n * n)
		defer packed.Put(buf)
		full := Of(*buf, n, n)
		s.Mul(full, b, b, Product{TransB: true})
		for i := range n {
			lo, hi := 0, i+1
			if upper {
				lo, hi = i, n
			}
			row := c.Row(i)
			for j := lo; j < hi; j++ {
				row[j] -= full.Data[i*n+j]
			}
		}
		return
	}
	h := half(n)
	b1, b2 := b.split(h, false)
	s.rankUpdate(c.Sub(0, h, 0, h), b1, upper)
	if upper {
		s.Mul(c.Sub(0, h, h, n), b1, b2, Product{TransB: true, Minus: true, Accumulate: true})
	} else {
		s.Mul(c.Sub(h, n, 0, h), b2, b1, Product{TransB: true, Minus: true, Accumulate: true})
	}
	s.rankUpdate(c.Sub(h, n, h, n), b2, upper)
}
