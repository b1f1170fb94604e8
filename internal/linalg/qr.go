package linalg

import "math"

// reflectors is a product of Householder reflections in blocks: H = Π (I - V·T·Vᵀ), one factor per block.
type reflectors struct {
	v      Matrix   // [m, k]: unit lower trapezoidal, shifted down by offset
	t      []Matrix // upper triangular, one per block of columns of v
	offset int      // rows of v above the first one
}

// qrBlock is how many reflections are applied at a time.
const qrBlock = 48

// QR factors a into thin factors: q [m, k] with orthonormal columns and r [k, n] upper triangular with a
// diagonal that is not negative, k = min(m, n), a = q·r. a is left alone. Orthogonality holds to rounding
// whatever the rank of a. The error wraps [ErrNonFinite].
func (s Solver) QR(a Matrix) (q, r Matrix, err error) {
	if err := a.CheckFinite(); err != nil {
		return Matrix{}, Matrix{}, err
	}

	k := min(a.Rows, a.Cols)
	work := newSpaced(a.Rows, a.Cols)
	work.Copy(a)

	h := s.householder(work)
	r = work.Sub(0, k, 0, a.Cols).Clone()
	r.clearTriangle(false)
	q = newSpaced(a.Rows, k)
	for i := range k {
		q.Set(i, i, 1)
	}

	s.reflect(h, q, false)

	// With a diagonal that is not negative the factors of a matrix of full rank are unique.
	for i := range k {
		if r.At(i, i) < 0 {
			for j := i; j < r.Cols; j++ {
				r.Data[i*r.Stride+j] = -r.Data[i*r.Stride+j]
			}
			for p := range q.Rows {
				q.Data[p*q.Stride+i] = -q.Data[p*q.Stride+i]
			}
		}
	}

	return q, r, nil
}

// householder reduces a to its triangular factor, block by block; what is below the diagonal is left undefined.
func (s Solver) householder(a Matrix) reflectors {
	k := min(a.Rows, a.Cols)
	h := reflectors{v: newSpaced(a.Rows, k)}
	for j := 0; j < k; j += qrBlock {
		w := min(qrBlock, k-j)
		panel := a.Sub(j, a.Rows, j, j+w).T() // columns as rows: contiguous
		taus := panelReflectors(panel)

		for p := range w {
			col := panel.Row(p)
			for i := range p + 1 {
				a.Set(j+i, j+p, col[i])
			}

			h.v.Set(j+p, j+p, 1)
			for i := p + 1; i < len(col); i++ {
				h.v.Set(j+i, j+p, col[i])
			}
		}

		h.t = append(h.t, h.triangle(panel, taus))
		if j+w < a.Cols {
			s.reflectBlock(h, j, w, a.Sub(0, a.Rows, j+w, a.Cols), true)
		}
	}

	return h
}

// panelReflectors reduces a few columns, given as rows: on return row p holds column p of R up to element p and
// the reflection after it. It returns the reflections' factors.
func panelReflectors(cols Matrix) []float64 {
	taus := make([]float64, cols.Rows)
	for p := range taus {
		col := cols.Row(p)[p:]
		tau, head := reflection(col)
		taus[p] = tau
		col[0] = 1

		for q := p + 1; q < cols.Rows; q++ {
			other := cols.Row(q)[p:]
			kernel.axpy(other, -tau*kernel.dot(col, other), col)
		}

		col[0] = head
	}

	return taus
}

// reflection makes x, but for x[0], the tail of v with v[0] = 1 such that (I - tau·v·vᵀ)·x is head times the
// first unit vector.
func reflection(x []float64) (tau, head float64) {
	tail := x[1:]
	top := 0.0
	for _, v := range tail {
		top = max(top, math.Abs(v))
	}
	if top == 0 {
		return 0, x[0]
	}

	top = max(top, math.Abs(x[0]))
	sum := 0.0
	for i, v := range tail { // scaled, so that squares neither overflow nor vanish
		v /= top
		tail[i] = v
		sum += v * v
	}

	first := x[0] / top
	norm := -math.Copysign(math.Sqrt(first*first+sum), first)
	scale := 1 / (first - norm)
	for i := range tail {
		tail[i] *= scale
	}

	return (norm - first) / norm, norm * top
}

// triangle is the factor T of a block whose reflections lie in the rows of cols (see panelReflectors).
func (h reflectors) triangle(cols Matrix, taus []float64) Matrix {
	w := len(taus)
	t := New(w, w)
	products := make([]float64, w)
	for p, tau := range taus {
		t.Set(p, p, tau)
		tail := cols.Row(p)[p+1:]
		for q := range p {
			products[q] = cols.At(q, p) + kernel.dot(cols.Row(q)[p+1:], tail)
		}

		for i := range p {
			sum := 0.0
			for q := i; q < p; q++ {
				sum += t.At(i, q) * products[q]
			}
			t.Set(i, p, -tau*sum)
		}
	}

	return t
}

// reflect overwrites c with H·c, or with Hᵀ·c.
func (s Solver) reflect(h reflectors, c Matrix, trans bool) {
	n := len(h.t)
	for i := range n {
		b := i
		if !trans {
			b = n - 1 - i
		}
		s.reflectBlock(h, b*qrBlock, h.t[b].Rows, c, trans)
	}
}

// reflectBlock applies the block of w reflections from column j: c ← c - V·op(T)·(Vᵀ·c).
func (s Solver) reflectBlock(h reflectors, j, w int, c Matrix, trans bool) {
	c = c.Sub(j+h.offset, c.Rows, 0, c.Cols)
	v := h.v.Sub(j+h.offset, h.v.Rows, j, j+w)
	p, q := New(w, c.Cols), New(w, c.Cols)
	s.Mul(p, v, c, Product{TransA: true})
	s.Mul(q, h.t[j/qrBlock], p, Product{TransA: trans})
	s.Mul(c, v, q, Product{Minus: true, Accumulate: true})
}
