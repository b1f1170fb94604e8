// Package spectral holds the merges of single matrices that need factorisations: TSV-M and Iso-C, which need
// singular vectors, and RegMean, which solves a linear system. The first two are written with Gram matrices of
// the smaller side, whose eigenvectors cost a fraction of a singular value decomposition; where squaring would
// cost accuracy, because the values involved differ by more than a factor of 1e4, the decomposition itself is
// made.
//
// Everything is float64. Results do not depend on the number of threads.
package spectral

import (
	"math"

	"github.com/modelcompress/compress/internal/linalg"
)

// maxRatio is the largest ratio of singular values up to which Gram matrices serve. Squared, it leaves eight digits of
// float64, more than float32 has.
const maxRatio = 1e4

// Isotropic is Iso-C: a matrix, the sum of differences, with every singular value replaced by their mean
// (Marczak et al., ICML 2025). The result has the matrix' shape; the matrix is left alone. The errors are those
// of package linalg and of the solver's Stop.
func Isotropic(total linalg.Matrix, s linalg.Solver) (linalg.Matrix, error) {
	orth, mean, err := polar(total, s)
	if err != nil {
		return total, err
	}
	orth.Scale(mean)
	return orth, nil
}

// polar is the matrix with orthonormal columns (or rows) that is nearest to m, and the mean of m's singular
// values. Where m lacks rank, the directions it leaves open are those of [linalg.Solver.SVD].
func polar(m linalg.Matrix, s linalg.Solver) (orth linalg.Matrix, mean float64, err error) {
	values, w, err := gramEigen(m, s)
	if err != nil {
		return orth, 0, err
	}

	k := len(values)
	if values[0]*maxRatio*maxRatio < values[k-1] || values[0] <= 0 {
		u, values, v, err := s.SVD(m)
		if err != nil {
			return orth, 0, err
		}

		orth = linalg.New(m.Rows, m.Cols)
		s.Mul(orth, u, v, linalg.Product{TransB: true})
		return orth, average(values), nil
	}

	for i, v := range values {
		values[i] = math.Sqrt(v)
	}

	root := rooted(values, w, s)
	orth = linalg.New(m.Rows, m.Cols) // not before: by now less is in use
	if m.Rows <= m.Cols {
		s.Mul(orth, root, m, linalg.Product{})
	} else {
		s.Mul(orth, m, root, linalg.Product{})
	}

	return orth, average(values), stopped(s)
}

// rooted is W·diag(1/values)·Wᵀ for positive values. It overwrites W.
func rooted(values []float64, w linalg.Matrix, s linalg.Solver) linalg.Matrix {
	k := len(values)
	for i := range k { // W·diag(values)^(-1/2), times its own transpose
		row := w.Row(i)
		for j, v := range values {
			row[j] /= math.Sqrt(v)
		}
	}

	root := linalg.New(k, k)
	s.Mul(root, w, w, linalg.Product{TransB: true})
	return root
}

// gramEigen decomposes the Gram matrix of the smaller side, with values in ascending order.
func gramEigen(m linalg.Matrix, s linalg.Solver) ([]float64, linalg.Matrix, error) {
	k := min(m.Rows, m.Cols)
	g := linalg.New(k, k)
	s.Mul(g, m, m, linalg.Product{TransA: m.Rows > m.Cols, TransB: m.Rows <= m.Cols})
	if err := stopped(s); err != nil {
		return nil, g, err
	}
	return s.SymEigen(g)
}

func average(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total / float64(len(values))
}

// stopped asks whether to go on.
func stopped(s linalg.Solver) error {
	if s.Stop == nil {
		return nil
	}
	return s.Stop()
}

// TaskSingular is TSV-M: of each of n differences the leading 1/n of the singular directions, brought side by
// side, with both sides replaced by the nearest orthonormal ones (Gargiulo et al., CVPR 2025). delta fills its
// argument, of the shape of the result, with difference j; it may be called more than once for each. The errors
// are those of delta, of package linalg and of the solver's Stop.
func TaskSingular(rows, cols, n int, delta func(j int, dst linalg.Matrix), s linalg.Solver) (linalg.Matrix, error) {
	out := linalg.New(rows, cols)
	keep := max(1, min(rows, cols)/n)
	left, right := linalg.New(rows, keep*n), linalg.New(keep*n, cols) // the right one transposed
	var scales []float64
	for j := range n {
		delta(j, out)
		u, values, vt, err := leading(out, keep, s)
		if err != nil {
			return out, err
		}

		left.Sub(0, rows, j*keep, (j+1)*keep).Copy(u)
		right.Sub(j*keep, (j+1)*keep, 0, cols).Copy(vt)
		scales = append(scales, values...)
	}

	left, _, err := polar(left, s)
	if err != nil {
		return left, err
	}

	if right, _, err = polar(right, s); err != nil {
		return right, err
	}

	for r := range left.Rows {
		row := left.Row(r)
		for c := range row {
			row[c] *= scales[c]
		}
	}

	s.Mul(out, left, right, linalg.Product{})
	return out, nil
}

// leading gives the first singular values of d with their left vectors as columns and their right ones as rows.
func leading(d linalg.Matrix, keep int, s linalg.Solver) (u linalg.Matrix, values []float64, vt linalg.Matrix,
	err error,
) {
	k := min(d.Rows, d.Cols)
	squares, w, err := gramEigen(d, s)
	if err != nil {
		return u, nil, vt, err
	}

	if least := squares[k-keep]; least <= 0 || least*maxRatio*maxRatio < squares[k-1] {
		return decomposed(d, keep, s)
	}

	values = make([]float64, keep)
	side := linalg.New(k, keep)
	for c := range keep {
		values[c] = math.Sqrt(squares[k-1-c])
		for r := range k {
			side.Set(r, c, w.At(r, k-1-c))
		}
	}

	if d.Rows > d.Cols { // the eigenvectors are the right ones
		u = linalg.New(d.Rows, keep)
		s.Mul(u, d, side, linalg.Product{})

		for r := range u.Rows {
			row := u.Row(r)
			for c, v := range values {
				row[c] /= v
			}
		}

		return u, values, side.T(), stopped(s)
	}

	vt = linalg.New(keep, d.Cols)
	s.Mul(vt, side, d, linalg.Product{TransA: true})
	for r, v := range values {
		vt.Sub(r, r+1, 0, d.Cols).Scale(1 / v)
	}

	return side, values, vt, stopped(s)
}

// decomposed is leading by a whole decomposition.
func decomposed(d linalg.Matrix, keep int,
	s linalg.Solver,
) (u linalg.Matrix, values []float64, vt linalg.Matrix, err error) {
	u, values, v, err := s.SVD(d)
	if err != nil {
		return u, nil, v, err
	}
	return u.Sub(0, d.Rows, 0, keep), values[:keep], v.Sub(0, d.Cols, 0, keep).T(), nil
}
