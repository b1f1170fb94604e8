package method

import (
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/merge/internal/spectral"
)

// spectrum is one of the methods that work on singular values of a matrix of differences: it gives the merged difference.
type spectrum func(t *Tensor, w *Whole) (linalg.Matrix, error)

// program merges matrices as a whole. Tensors that are no matrices, and those over the vocabulary, get the mean difference
// times alpha.
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
		Memory: 8 * (5*t.N + 8*small*small),
		Whole: func(w *Whole) error {
			m, err := f(t, w)
			if err != nil {
				return named(t, err)
			}
			for i, b := range w.Base {
				w.Out[i] = float32(float64(b) + alpha*m.Data[i])
			}
			return nil
		},
	}, nil
}

// isotropic is Iso-C.
func isotropic(t *Tensor, w *Whole) (linalg.Matrix, error) {
	total := linalg.New(int(t.Shape[0]), int(t.Shape[1]))
	for _, x := range w.X {
		for i, b := range w.Base {
			total.Data[i] += float64(x[i]) - float64(b)
		}
	}
	return spectral.Isotropic(total, w.solver())
}

// taskSingular is TSV-M.
func taskSingular(t *Tensor, w *Whole) (linalg.Matrix, error) {
	delta := func(j int, dst linalg.Matrix) {
		for i, b := range w.Base {
			dst.Data[i] = float64(w.X[j][i]) - float64(b)
		}
	}
	return spectral.TaskSingular(int(t.Shape[0]), int(t.Shape[1]), len(w.X), delta, w.solver())
}

// solver computes for a whole tensor.
func (w *Whole) solver() linalg.Solver { return linalg.Solver{Threads: w.Threads, Stop: w.Stop} }
