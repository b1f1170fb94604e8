package combine

import (
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// The changes of T adapters of ranks r lie in a small common space, where they can be mixed without forming them, and
// without losing anything: what is mixed has as many rows and columns as the ranks add up to, whatever the size of the
// matrix.
//
// Core space (Panariello et al., NeurIPS 2025, arXiv 2509.17786): U are the left singular vectors of [B₁ … B_T], V the
// right ones of [A₁; …; A_T]. Each change is U·M·Vᵀ with M = Uᵀ·(s·B·A)·V, and so is the mix of the Ms.
//
// KnOTS (Stoica et al., ICLR 2025, arXiv 2410.19735): [ΔW₁ … ΔW_T] = U·S·[V₁ᵀ … V_Tᵀ], and the Vs are mixed.

// space is where the changes of adapters are mixed.
type space uint8

const (
	factorSpace space = iota // the factors by themselves, as PEFT does
	fullSpace                // the changes written out, then cut to a rank
	coreSpace
	knotsSpace
)

// dependent is the fraction of the largest singular value below which a direction is rounding of float64.
const dependent = 1e-12

// basis are the singular vectors of x whose values are above rounding, with these values; none of zeros.
func (c *combiner) basis(x linalg.Matrix) (u linalg.Matrix, values []float64, v linalg.Matrix, err error) {
	u, values, v, err = c.solver().SVD(x)
	if err != nil {
		return u, values, v, err
	}

	n := 0
	for n < len(values) && values[n] > dependent*values[0] {
		n++
	}
	return u.Sub(0, u.Rows, 0, n).Clone(), values[:n], v.Sub(0, v.Rows, 0, n).Clone(), nil
}

// nothing is a change of zeros.
func (c *combiner) nothing(m adapter.Module) (a, b linalg.Matrix, energy *float64, err error) {
	all := 1.0
	return linalg.New(1, m.In), linalg.New(m.Out, 1), &all, nil
}

// mixCore mixes the changes of a module in their core space.
func (c *combiner) mixCore(m adapter.Module, list []part) (a, b linalg.Matrix, energy *float64, err error) {
	alike := make([]part, len(list)) // whose factors stand side by side as they are
	for i, p := range list {
		alike[i] = p
		alike[i].weight = 1
		alike[i].scale = 1
	}
	rows, cols := cat(alike)

	u, _, _, err := c.basis(cols)
	if err != nil {
		return a, b, nil, err
	}
	v, _, _, err := c.basis(rows.T())
	if err != nil {
		return a, b, nil, err
	}
	if u.Cols == 0 || v.Cols == 0 { // nothing is changed
		return c.nothing(m)
	}

	var cores []linalg.Matrix
	var weights []float64
	var ranks []int
	for _, p := range list {
		left := c.solver().Times(u, p.b, linalg.Product{TransA: true})
		core := c.solver().Times(left, c.solver().Times(p.a, v, linalg.Product{}), linalg.Product{})
		core.Scale(p.scale)
		cores, weights, ranks = append(cores, core), append(weights, p.weight), append(ranks, p.a.Rows)
	}

	var mixed linalg.Matrix
	if c.method.whiten {
		mixed, err = c.whitened(cores, weights, ranks)
	} else {
		mixed = c.mix(m.Path, cores, weights)
	}
	if err == nil && c.method.iso {
		mixed, err = c.isotropic(mixed)
	}
	if err != nil {
		return a, b, nil, err
	}

	inA, inB, energy, err := c.cut(mixed)
	if err != nil {
		return a, b, nil, err
	}
	a, b = c.solver().Times(inA, v, linalg.Product{TransB: true}), c.solver().Times(u, inB, linalg.Product{})
	return a, b, energy, nil
}

// whitened adds changes whose singular vectors are made orthogonal to those of the others (TSV-M: Gargiulo et al., CVPR
// 2025, arXiv 2412.00081): with all left ones side by side in X and all right ones in Y, polar(X)·S·polar(Y)ᵀ. An
// adapter brings as many as its rank is, where the publication, whose changes are not of low rank, cuts them to equal
// shares.
func (c *combiner) whitened(list []linalg.Matrix, weights []float64, ranks []int) (linalg.Matrix, error) {
	var left, right []linalg.Matrix
	var values []float64
	for i, x := range list {
		u, s, v, err := c.basis(x)
		if err != nil {
			return x, err
		}

		// No more than there are: a direction of no length would still push others aside.
		n := min(ranks[i], len(s))
		if n == 0 {
			continue
		}
		left, right = append(left, u.Sub(0, u.Rows, 0, n)), append(right, v.Sub(0, v.Rows, 0, n))
		for _, x := range s[:n] {
			values = append(values, x*weights[i])
		}
	}

	if len(left) == 0 {
		return list[0], nil
	}

	x, err := c.polar(beside(left))
	if err != nil {
		return x, err
	}
	y, err := c.polar(beside(right))
	if err != nil {
		return y, err
	}

	for i := range x.Rows {
		for j, s := range values {
			x.Set(i, j, x.At(i, j)*s)
		}
	}
	return c.solver().Times(x, y, linalg.Product{TransB: true}), nil
}

// beside puts matrices side by side.
func beside(list []linalg.Matrix) linalg.Matrix {
	cols := 0
	for _, x := range list {
		cols += x.Cols
	}

	out := linalg.New(list[0].Rows, cols)
	at := 0
	for _, x := range list {
		out.Sub(0, out.Rows, at, at+x.Cols).Copy(x)
		at += x.Cols
	}
	return out
}

// polar is the nearest matrix with orthonormal columns, or rows; where columns depend on each other, they share.
func (c *combiner) polar(x linalg.Matrix) (linalg.Matrix, error) {
	u, _, v, err := c.basis(x)
	if err != nil {
		return x, err
	}
	return c.solver().Times(u, v, linalg.Product{TransB: true}), nil
}

// isotropic gives all singular values their mean (Marczak et al., arXiv 2502.04959).
func (c *combiner) isotropic(x linalg.Matrix) (linalg.Matrix, error) {
	u, s, v, err := c.solver().SVD(x)
	if err != nil {
		return x, err
	}

	mean := 0.0
	for _, value := range s {
		mean += value / float64(len(s))
	}
	out := c.solver().Times(u, v, linalg.Product{TransB: true})
	out.Scale(mean)
	return out, nil
}

// mixKnots mixes the right sides of the changes of a module, whose left ones are common.
func (c *combiner) mixKnots(m adapter.Module, list []part) (a, b linalg.Matrix, energy *float64, err error) {
	in := m.In
	var columns []linalg.Matrix
	for _, p := range list {
		columns = append(columns, p.b)
	}

	// [B₁ … B_T] = Q·R, so that [ΔW₁ … ΔW_T] = Q·[C₁ … C_T] with as few rows as the ranks add up to.
	q, r, err := c.solver().QR(beside(columns))
	if err != nil {
		return a, b, nil, err
	}

	var small []linalg.Matrix
	var weights []float64
	at := 0
	for _, p := range list {
		x := c.solver().Times(r.Sub(0, r.Rows, at, at+p.a.Rows).Clone(), p.a, linalg.Product{})
		x.Scale(p.scale)
		small, weights = append(small, x), append(weights, p.weight)
		at += p.a.Rows
	}

	u, s, v, err := c.basis(beside(small))
	if err != nil {
		return a, b, nil, err
	}

	if len(s) == 0 {
		return c.nothing(m)
	}

	var rights []linalg.Matrix
	for i := range list {
		rights = append(rights, v.Sub(i*in, (i+1)*in, 0, v.Cols).T())
	}
	mixed := c.mix(m.Path, rights, weights)
	for i, value := range s {
		for j := range mixed.Cols {
			mixed.Set(i, j, mixed.At(i, j)*value)
		}
	}

	a, inB, energy, err := c.cut(mixed)
	if err != nil {
		return a, b, nil, err
	}
	return a, c.solver().Times(q, c.solver().Times(u, inB, linalg.Product{}), linalg.Product{}), energy, nil
}
