package structure

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/linalg"
)

// fit lets the inputs that stay of a matrix make up for those that go. With W = [W_M W_P] its columns that stay and go,
// and H = Σ x xᵀ over what the text brings to it, the least of
//
//	tr (W - W')(H + r·diag H)(W - W')ᵀ  over W' that is 0 in P  is  W'_M = W_M + W_P·H_PM·(H_MM + r·diag H_MM)⁻¹
//
// so that with a large r nothing changes, where FASP's W·H[:,M]·(H_MM + δ)⁻¹ goes to 0. H + r·diag H is H drawn to its
// diagonal: from few tokens the products of different inputs are known badly, their squares well.
type fit struct {
	solver linalg.Solver
	w      linalg.Matrix // [out, in]
	keep   []int         // M
}

// ridges are the r that are tried, in the order of their sizes; usual is where that begins, and what is taken where
// nothing is held out.
var ridges = []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10}

const usual = 4

// outputs is how many outputs of a matrix are looked at to choose, and to say what was gained.
const outputs = 64

// some gives the weights of some outputs.
func some(w linalg.Matrix) linalg.Matrix {
	rows := linalg.New(min(outputs, w.Rows), w.Cols)
	for i := range rows.Rows {
		copy(rows.Row(i), w.Row(i*w.Rows/rows.Rows))
	}
	return rows
}

// part is what stays of some outputs' weights, or what goes, with 0 elsewhere.
func (f *fit) part(rows linalg.Matrix, stays bool) linalg.Matrix {
	p := linalg.New(rows.Rows, rows.Cols)
	for i := range rows.Rows {
		if !stays {
			copy(p.Row(i), rows.Row(i))
		}
		for _, j := range f.keep {
			if stays {
				p.Set(i, j, rows.At(i, j))
			} else {
				p.Set(i, j, 0)
			}
		}
	}
	return p
}

// made gives some outputs' weights with what stays making up for what goes, 0 elsewhere.
func (f *fit) made(rows, h linalg.Matrix, ridge float64) (linalg.Matrix, linalg.Damping, error) {
	n := len(f.keep)
	among := linalg.New(n, rows.Cols) // H[M,:]
	for i, k := range f.keep {
		copy(among.Row(i), h.Row(k))
	}
	x := linalg.New(n, rows.Rows)
	f.solver.Mul(x, among, f.part(rows, false), linalg.Product{TransB: true})

	factor := linalg.New(n, n)
	fill := func(to linalg.Matrix) {
		for i := range n {
			for j, k := range f.keep {
				to.Set(i, j, among.At(i, k))
			}
			to.Set(i, i, to.At(i, i)*(1+ridge))
		}
	}
	d, err := f.solver.Damped(factor, damping, fill, func(a linalg.Matrix) error { return f.solver.Cholesky(a, true) })
	if err == nil {
		err = f.solver.CholeskySolve(factor, x, true)
	}
	if err != nil {
		return linalg.Matrix{}, d, err
	}

	made := f.part(rows, true)
	for j, k := range f.keep {
		for i := range rows.Rows {
			made.Set(i, k, made.At(i, k)+x.At(j, i))
		}
	}

	return made, d, made.CheckFinite()
}

// lost is the error of some outputs by what they give, both as squares over the text of a Hessian.
func (f *fit) lost(rows, made, h linalg.Matrix) float64 {
	change := linalg.New(rows.Rows, rows.Cols)
	for i, v := range rows.Data {
		change.Data[i] = made.Data[i] - v
	}
	all := f.solver.Energy(rows, h)
	if all == 0 {
		return 0
	}
	return f.solver.Energy(change, h) / all
}

// choose takes the r with which the outputs err least on text that was held out: from the usual one on, as long as it
// gets better. Where nothing is gained by any, the matrix is left as it is.
func (f *fit) choose(found *Restored, h, held linalg.Matrix) error {
	rows := some(f.w)
	found.Cut = f.lost(rows, f.part(rows, true), held)
	found.Updated = math.Inf(1)
	try := func(at int) (better bool, err error) {
		made, _, err := f.made(rows, h, ridges[at])
		if err != nil {
			return false, fmt.Errorf("with %g of the diagonal more: %w", ridges[at], err)
		}
		v := f.lost(rows, made, held)
		if better = v < found.Updated; better {
			found.Updated, found.Ridge = v, ridges[at]
		}
		return better, nil
	}

	if _, err := try(usual); err != nil {
		return err
	}
	for _, step := range []int{-1, 1} {
		for at := usual + step; at >= 0 && at < len(ridges); at += step {
			better, err := try(at)
			if err != nil {
				return err
			}
			if !better {
				break
			}
		}
		if found.Ridge < ridges[usual] {
			break
		}
	}

	if found.Updated >= found.Cut {
		found.Updated, found.Ridge, found.Left = found.Cut, 0, true
	}

	return nil
}

// usual fits where nothing is held out.
func (f *fit) usual(found *Restored, h linalg.Matrix) (linalg.Matrix, error) {
	found.Ridge = ridges[usual]
	made, d, err := f.made(f.w, h, found.Ridge)
	if err != nil {
		return made, err
	}

	rows := some(f.w)
	found.Damping, found.Cut = d, f.lost(rows, f.part(rows, true), h)
	found.Updated = f.lost(rows, some(made), h)
	return made, nil
}
