package spectral

import "github.com/modelcompress/compress/internal/linalg"

// RegMean writes the matrix whose outputs are nearest to those of every model on its own inputs (Jin et al.,
// ICLR 2023) to dst: (Σ Ĝ_j)⁻¹ Σ Ĝ_j W_j with W_j as [in, out], and Ĝ_j the [in, in] Gram matrix grams[j] of
// inputs with the elements off the diagonal times alpha. models and dst are [out, in], or [in, out] if
// transposed. The errors are those of package linalg and of the solver's Stop.
func RegMean(dst []float32, models, grams [][]float32, in int, alpha float64, transposed bool, s linalg.Solver) error {
	out := len(dst) / in
	total, right := linalg.New(in, in), linalg.New(in, out)
	scaled := linalg.New(in, in)
	for j, x := range models {
		for i, g := range grams[j] {
			v := float64(g)
			if i%(in+1) != 0 {
				v *= alpha
			}
			scaled.Data[i] = v
			total.Data[i] += v
		}

		s.Mul(right, scaled, widened(x, in, out, !transposed), linalg.Product{Accumulate: true})
		if err := stopped(s); err != nil {
			return err
		}
	}

	factor := scaled
	_, err := s.Damped(factor, 1e-9, func(h linalg.Matrix) { h.Copy(total) },
		func(h linalg.Matrix) error { return s.Cholesky(h, false) })
	if err != nil {
		return err
	}

	if err := stopped(s); err != nil {
		return err
	}
	if err := s.CholeskySolve(factor, right, false); err != nil {
		return err
	}
	if !transposed {
		right = right.T()
	}
	for i, v := range right.Data {
		dst[i] = float32(v)
	}

	return stopped(s)
}

// widened is a row-major matrix as [rows, cols]; with turn, x is stored as [cols, rows].
func widened(x []float32, rows, cols int, turn bool) linalg.Matrix {
	if turn {
		return widened(x, cols, rows, false).T()
	}
	m := linalg.New(rows, cols)
	for i, v := range x {
		m.Data[i] = float64(v)
	}
	return m
}
