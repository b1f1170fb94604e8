package method

import (
	"errors"
	"math"

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
	if len(t.Shape) != 2 || t.Vocab || t.Shape[0] < 2 || t.Shape[1] < 2 {
		return meanDifference(t, alpha), nil
	}

	small := min(t.Shape[0], t.Shape[1])
	return &Program{
		Memory: 8 * (5*t.N + 8*small*small), // where whole matrices must be decomposed; mostly 8·small² are needed
		Lazy:   true,
		Whole:  func(w *Whole) error { return named(t, f(w.parts(t, alpha), w.solver())) },
	}, nil
}

// wudi merges every matrix by WUDI's objective, tables over the vocabulary too, as published: what it keeps has the
// size of the inputs. Tensors that are no matrices get the mean difference.
func wudi(o func(t *Tensor) (spectral.Wudi, error)) func(t *Tensor) (*Program, error) {
	return func(t *Tensor) (*Program, error) {
		if p, err := based(t); p != nil || err != nil {
			return p, err
		}
		how, err := o(t)
		if err != nil {
			return nil, err
		}

		alpha, n := t.Params.Number("alpha"), int64(len(t.Inputs))
		if len(t.Shape) != 2 || t.Shape[0] < 2 || t.Shape[1] < 2 {
			return meanDifference(t, alpha), nil
		}

		rows, in := t.Shape[0], t.Shape[1]
		memory := 4*in*in + 8*256*in
		if rows > in {
			memory += n * in * in
		}
		return &Program{
			Memory: 8 * memory, Lazy: true,
			Whole: func(w *Whole) error { return named(t, w.parts(t, alpha).Wudi(how, w.solver())) },
		}, nil
	}
}

func wudiSteps(t *Tensor) (o spectral.Wudi, err error) {
	o.Iterations, o.Rate = int(t.Params.Number("iterations")), t.Params.Number("rate")
	switch {
	case o.Iterations < 1 || o.Iterations > 1_000_000:
		err = outOfRange(t, "iterations", t.Params.Number("iterations"), "1 to 1000000 (wudi_closed needs none)")
	case !(o.Rate > 0):
		err = outOfRange(t, "rate", o.Rate, "above 0")
	}
	return o, err
}

func wudiClosed(t *Tensor) (o spectral.Wudi, err error) {
	o.Damping = t.Params.Number("damping")
	if !(o.Damping >= 0) {
		err = outOfRange(t, "damping", o.Damping, "0 or more")
	}
	return o, err
}

// meanDifference adds the mean difference times alpha to the base.
func meanDifference(t *Tensor, alpha float64) *Program {
	n := len(t.Inputs)
	w := make([]float64, n)
	for j := range w {
		w[j] = alpha / float64(n)
	}
	a := angular{deltas: true}
	return &Program{Apply: func(b *Block) { a.write(b, a.vectors(b), w, 0, b.Len()) }}
}

// continual adds one model after the other as OPCM does. Differences that are no matrices of linear layers are added
// whole. The published code brings the merge of all tensors together to the mean length of the models' differences;
// here each tensor gets the mean length that it has in the models, so that no tensor has to wait for the others, or
// lambda says what all are divided by.
func continual(t *Tensor) (*Program, error) {
	if p, err := based(t); p != nil || err != nil {
		return p, err
	}

	o := spectral.Continual{
		Alpha: t.Params.Number("alpha"), Before: t.Params.Number("merged"), Lambda: t.Params.Number("lambda"),
	}
	switch {
	case !(o.Alpha >= 0 && o.Alpha <= 1):
		return nil, outOfRange(t, "alpha", o.Alpha, "0 to 1")
	case !(o.Before >= 1):
		return nil, outOfRange(t, "merged", o.Before, "1 or more")
	case t.Params.Has("lambda") && !(o.Lambda > 0):
		return nil, outOfRange(t, "lambda", o.Lambda, "above 0")
	}

	// What is added is orthogonal to what was there: n models of one length make a sum √n times as long.
	o.First = math.Sqrt(o.Before)
	if t.Params.Has("lambda") && o.Before > 1 {
		o.First = o.Lambda // by which what was merged before was divided too
	}

	if len(t.Shape) != 2 || t.Vocab || t.Shape[0] < 2 || t.Shape[1] < 2 {
		return angular{deltas: true, coefs: func(g gram) ([]float64, error) { return added(g, o), nil }}.program(t), nil
	}

	small := min(t.Shape[0], t.Shape[1])
	return &Program{
		Memory: 8 * (5*t.N + 8*small*small), Lazy: true,
		Whole: func(w *Whole) error { return named(t, w.parts(t, 1).Continual(o, w.solver())) },
	}, nil
}

// added are the factors of differences that are added whole.
func added(g gram, o spectral.Continual) []float64 {
	w := make([]float64, len(g))
	square, length := 0.0, 0.0
	models := 0.0
	for i := range g {
		w[i] = 1
		count := 1.0
		if i == 0 {
			w[i], count = o.First, o.Before
		}
		length += count * math.Sqrt(g[i][i])
		models += count
	}
	for i := range g {
		for j := range g {
			square += w[i] * w[j] * g[i][j]
		}
	}

	scale := 0.0
	switch {
	case o.Lambda > 0:
		scale = 1 / o.Lambda
	case square > 0:
		scale = length / models / math.Sqrt(square)
	}
	for i := range w {
		w[i] *= scale
	}
	return w
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
