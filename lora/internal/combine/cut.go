package combine

import (
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// solver computes with the threads that are allowed.
func (c *combiner) solver() linalg.Solver { return linalg.Solver{Threads: c.Threads} }

// cutPairs cuts Σ w·s·B·A to the rank of the result without forming it: of B = Qb·Rb and Aᵀ = Qa·Ra, side by
// side for all adapters, only Rb·Raᵀ is decomposed.
func (c *combiner) cutPairs(list []part) (a, b linalg.Matrix, energy *float64, err error) {
	a, b = cat(list)
	if a.Rows >= min(a.Cols, b.Rows) {
		d := linalg.New(b.Rows, a.Cols)
		c.solver().Mul(d, b, a, linalg.Product{})
		return c.cut(d)
	}

	qb, rb, err := c.solver().QR(b)
	if err != nil {
		return a, b, nil, err
	}

	qa, ra, err := c.solver().QR(a.T())
	if err != nil {
		return a, b, nil, err
	}

	core := linalg.New(rb.Rows, ra.Rows)
	c.solver().Mul(core, rb, ra, linalg.Product{TransB: true})
	va, ub, energy, err := c.cut(core)
	if err != nil {
		return a, b, nil, err
	}

	a, b = linalg.New(va.Rows, qa.Rows), linalg.New(qb.Rows, ub.Cols)
	c.solver().Mul(a, va, qa, linalg.Product{TransB: true})
	c.solver().Mul(b, qb, ub, linalg.Product{})

	return a, b, energy, nil
}

// cutDense forms the deltas, mixes them and cuts the result.
func (c *combiner) cutDense(m adapter.Module, list []part) (a, b linalg.Matrix, energy *float64, err error) {
	var deltas []linalg.Matrix
	var weights []float64
	for _, p := range list {
		d := linalg.New(p.b.Rows, p.a.Cols)
		c.solver().Mul(d, p.b, p.a, linalg.Product{})
		d.Scale(p.scale)
		deltas, weights = append(deltas, d), append(weights, p.weight)
	}
	return c.cut(c.mix(m.Path, deltas, weights))
}

// cut decomposes d [out, in] and keeps the rank of the result: A = Vᵀ [r, in], B = U·S [out, r]. energy is the
// fraction of the squares of the singular values that is kept, 1 for zeros.
func (c *combiner) cut(d linalg.Matrix) (a, b linalg.Matrix, energy *float64, err error) {
	u, s, v, err := c.solver().SVD(d)
	if err != nil {
		return a, b, nil, err
	}

	r := min(c.rank, len(s))
	kept, all := 0.0, 0.0
	for i, x := range s {
		all += x * x
		if i < r {
			kept += x * x
		}
	}

	fraction := 1.0
	if all > 0 {
		fraction = kept / all
	}

	b = u.Sub(0, u.Rows, 0, r).Clone()
	for i := range b.Rows {
		for j := range r {
			b.Set(i, j, b.At(i, j)*s[j])
		}
	}

	return v.Sub(0, v.Rows, 0, r).T(), b, &fraction, nil
}
