package method

import (
	"errors"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/merge/internal/spectral"
)

// spectrum is one of the methods that work on singular values of matrices of differences.
type spectrum func(p spectral.Parts, s linalg.Solver) error

// program merges matrices as a whole. Tensors that are no matrices, and those over the vocabulary, get the mean
// difference times alpha.
func (f spectrum) program(t *Tensor) (*Program, error) {
	if p, err := based(t); p != nil || err != nil {
		return p, err
	}

	alpha := t.Params.Number("alpha")
	n := len(t.Inputs)
	if len(t.Shape) != 2 || t.Vocab || t.Shape[0] < 2 || t.Shape[1] < 2 {
		w := make([]float64, n)
		for j := range w {
			w[j] = alpha / float64(n)
		}
		a := angular{deltas: true}
		return &Program{Apply: func(b *Block) { a.write(b, a.vectors(b), w, 0, b.Len()) }}, nil
	}

	small := min(t.Shape[0], t.Shape[1])
	return &Program{
		Memory: 8 * (5*t.N + 8*small*small), // where whole matrices must be decomposed; mostly 8·small² are needed
		Lazy:   true,
		Whole:  func(w *Whole) error { return named(t, f(w.parts(t, alpha), w.solver())) },
	}, nil
}

// parts are the differences of a matrix to its base, and the result, base + alpha·difference.
func (w *Whole) parts(t *Tensor, alpha float64) spectral.Parts {
	n, cols := len(t.Inputs), int(t.Shape[1])
	x, b := make([]float32, cols), make([]float32, cols)
	return spectral.Parts{
		Rows: int(t.Shape[0]), Cols: cols, N: n,
		Read: func(j, row, col int, dst linalg.Matrix) error {
			x, b := x[:dst.Cols], b[:dst.Cols]
			for r := range dst.Rows {
				first := int64(row+r)*int64(cols) + int64(col)
				if err := errors.Join(w.Read(j, x, first), w.Read(n, b, first)); err != nil {
					return err
				}

				to := dst.Row(r)
				for c, v := range x {
					to[c] = float64(v) - float64(b[c])
				}
			}

			return nil
		},
		Write: func(row, col int, m linalg.Matrix) error {
			b := b[:m.Cols]
			for r := range m.Rows {
				first := int64(row+r)*int64(cols) + int64(col)
				if err := w.Read(n, b, first); err != nil {
					return err
				}

				to := w.Out[first:]
				for c, v := range m.Row(r) {
					to[c] = float32(float64(b[c]) + alpha*v)
				}
			}

			return nil
		},
	}
}

// solver computes for a whole tensor.
func (w *Whole) solver() linalg.Solver { return linalg.Solver{Threads: w.Threads, Stop: w.Stop} }
