package method

import (
	"github.com/modelcompress/compress/internal/linalg"
)

// spectral makes the methods that work on singular values of a matrix of differences. Tensors that are no matrices, and those
// over the vocabulary, get the mean difference times alpha.
func spectral(direction func(deltas []linalg.Matrix) (linalg.Matrix, error)) func(t *Tensor) (*Program, error) {
	return func(t *Tensor) (*Program, error) {
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
			Memory: 8 * (int64(n+6)*t.N + 4*small*small),
			Whole: func(w *Whole) error {
				rows, cols := int(t.Shape[0]), int(t.Shape[1])
				deltas := make([]linalg.Matrix, n)
				for j, x := range w.X {
					d := linalg.New(rows, cols)
					for i := range x {
						d.Data[i] = float64(x[i]) - float64(w.Base[i])
					}
					deltas[j] = d
				}
				m, err := direction(deltas)
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
}

// isotropic is Iso-C: the summed differences with every singular value replaced by their mean (Marczak et al., ICML 2025).
func isotropic(deltas []linalg.Matrix) (linalg.Matrix, error) {
	var s linalg.Solver
	total := deltas[0]
	for _, d := range deltas[1:] {
		for i, v := range d.Data {
			total.Data[i] += v
		}
	}
	u, values, v, err := s.SVD(total)
	if err != nil {
		return total, err
	}
	mean := sum(values) / float64(len(values))
	u.Scale(mean)
	s.Mul(total, u, v, linalg.Product{TransB: true})
	return total, nil
}

// taskSingular is TSV-M: of every difference the leading 1/T of the singular directions, brought side by side, with both
// sides replaced by the nearest orthonormal ones (Gargiulo et al., CVPR 2025).
func taskSingular(deltas []linalg.Matrix) (linalg.Matrix, error) {
	var s linalg.Solver
	rows, cols := deltas[0].Rows, deltas[0].Cols
	keep := max(1, min(rows, cols)/len(deltas))
	left, right := linalg.New(rows, keep*len(deltas)), linalg.New(cols, keep*len(deltas))
	var scales []float64
	for j, d := range deltas {
		u, values, v, err := s.TruncatedSVD(d, keep, linalg.Sketch{})
		if err != nil {
			return d, err
		}
		left.Sub(0, rows, j*keep, (j+1)*keep).Copy(u)
		right.Sub(0, cols, j*keep, (j+1)*keep).Copy(v)
		scales = append(scales, values...)
	}
	left, err := orthonormal(s, left)
	if err != nil {
		return left, err
	}
	if right, err = orthonormal(s, right); err != nil {
		return right, err
	}
	for r := range left.Rows {
		for c := range left.Row(r) {
			left.Row(r)[c] *= scales[c]
		}
	}
	out := linalg.New(rows, cols)
	s.Mul(out, left, right, linalg.Product{TransB: true})
	return out, nil
}

// orthonormal is the matrix with orthonormal columns (or rows) that is nearest to m: its polar factor.
func orthonormal(s linalg.Solver, m linalg.Matrix) (linalg.Matrix, error) {
	u, _, v, err := s.SVD(m)
	if err != nil {
		return m, err
	}
	out := linalg.New(m.Rows, m.Cols)
	s.Mul(out, u, v, linalg.Product{TransB: true})
	return out, nil
}
