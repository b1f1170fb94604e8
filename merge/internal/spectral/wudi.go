package spectral

import (
	"math"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/mmapsafe"
)

// Wudi is how WUDI's objective is met.
type Wudi struct {
	Iterations int     // of Adam, from the sum of all matrices on; 0: the closed form
	Rate       float64 // of Adam
	Damping    float64 // of the closed form, as a fraction of the mean of the diagonal of H
}

// Wudi writes the matrix τ whose differences to the matrices τ_j do not matter where these have their rows (WUDI, Cheng
// et al., arXiv 2503.08099): the least of
//
//	Σ_j ‖(τ - τ_j)·τ_jᵀ‖²/‖τ_j‖²
//
// The rows of a task's change span what its inputs were, so that what is asked is that no input of a task sees what the
// others have changed; it is RegMean with the changes as their own inputs. The publication takes Adam's steps from the
// sum of the τ_j, few and small enough to end long before the minimum. With H = Σ_j τ_jᵀτ_j/‖τ_j‖² the gradient is
// 2(τ·H - R), R = Σ_j τ_j·τ_jᵀτ_j/‖τ_j‖², so that the minimum itself is R·H⁻¹; damped by λ, which keeps the sum where
// no τ_j has rows, (R + λ·Στ_j)(H + λI)⁻¹. Rows of τ do not depend on each other: they are swept in panels, and what is
// kept are two matrices [cols, cols], and one for each j where there are more rows than columns.
//
// The errors are those of Read and Write, of package linalg and of the solver's Stop.
func (p Parts) Wudi(o Wudi, s linalg.Solver) error {
	w := &wudi{Parts: p, o: o, s: s, h: linalg.New(p.Cols, p.Cols), squares: make([]float64, p.N)}
	if err := w.collect(); err != nil {
		return err
	}

	switch {
	case w.still():
	case o.Iterations > 0:
		w.factor, _ = linalg.LowRankFactor(w.h, negligible, p.Cols/narrow)
	default:
		if err := w.invert(); err != nil {
			return err
		}
	}

	return w.rows(func(at, n int) error {
		sum, right, err := w.sides(at, n)
		if err != nil {
			return err
		}
		switch {
		case w.still(): // there is nowhere to go, and tables over the vocabulary are large
		case o.Iterations > 0:
			err = w.descend(sum, right)
		default:
			sum, err = w.solved(sum, right)
		}
		if err != nil {
			return err
		}
		return p.Write(at, 0, sum)
	})
}

// wudi is a matrix on its way.
type wudi struct {
	Parts
	o Wudi
	s linalg.Solver

	squares []float64       // ‖τ_j‖²
	each    []linalg.Matrix // τ_jᵀτ_j, where there are more rows than columns
	h       linalg.Matrix
	lambda  float64
	factor  linalg.Matrix // of H + λI for the closed form; of H, narrow, for steps, or without rows
}

// rows calls f for panels of rows in order.
func (w *wudi) rows(f func(at, n int) error) error {
	for at := 0; at < w.Rows; at += panel {
		if err := f(at, min(panel, w.Rows-at)); err != nil {
			return err
		}
		if err := stopped(w.s); err != nil {
			return err
		}
	}
	return nil
}

// collect sums H.
func (w *wudi) collect() error {
	buf := linalg.New(min(panel, w.Rows), w.Cols)
	for j := range w.N {
		own := linalg.New(w.Cols, w.Cols)
		err := w.rows(func(at, n int) error {
			b := buf.Sub(0, n, 0, w.Cols)
			if err := w.Read(j, at, 0, b); err != nil {
				return err
			}
			w.s.Mul(own, b, b, linalg.Product{TransA: true, Accumulate: true})
			return nil
		})
		if err != nil {
			return err
		}

		for i := range w.Cols {
			w.squares[j] += own.At(i, i)
		}
		if w.squares[j] == 0 {
			continue // a model that is the base has no wish
		}
		for i, v := range own.Data {
			w.h.Data[i] += v / w.squares[j]
		}
		if w.Rows > w.Cols {
			own.Scale(1 / w.squares[j])
			w.each = append(w.each, own)
		}
	}
	return nil
}

// still reports whether no two models have changed the matrix, so that the sum disturbs nobody.
func (w *wudi) still() bool {
	changed := 0
	for _, s := range w.squares {
		if s != 0 {
			changed++
		}
	}
	return changed < 2
}

// sides are the rows of Στ_j and of R.
func (w *wudi) sides(at, n int) (sum, right linalg.Matrix, err error) {
	sum, right = linalg.New(n, w.Cols), linalg.New(n, w.Cols)
	b, buf := linalg.New(n, w.Cols), linalg.New(min(panel, w.Rows), w.Cols)
	k := 0
	for j := range w.N {
		if err := w.Read(j, at, 0, b); err != nil {
			return sum, right, err
		}
		for i, v := range b.Data {
			sum.Data[i] += v
		}

		switch {
		case w.squares[j] == 0:
			continue
		case w.Rows > w.Cols:
			w.s.Mul(right, b, w.each[k], linalg.Product{Accumulate: true})
			k++
			continue
		}

		// τ_j[rows]·τ_jᵀ·τ_j, without a matrix [cols, cols] of every j.
		part := linalg.New(n, min(panel, w.Rows))
		err := w.rows(func(from, m int) error {
			o, inner := buf.Sub(0, m, 0, w.Cols), part.Sub(0, n, 0, m)
			if err := w.Read(j, from, 0, o); err != nil {
				return err
			}
			w.s.Mul(inner, b, o, linalg.Product{TransB: true})
			inner.Scale(1 / w.squares[j])
			w.s.Mul(right, inner, o, linalg.Product{Accumulate: true})
			return nil
		})
		if err != nil {
			return sum, right, err
		}
	}
	return sum, right, nil
}

// Adam's constants (Kingma and Ba, arXiv 1412.6980), as published.
const (
	beta1, beta2 = 0.9, 0.999
	adamEps      = 1e-8
)

// Where all changes together have few directions, as those of folded adapters, H is a product of narrow factors but for
// the rounding of the weights: what is left out has no more than negligible of its trace. From a quarter of the
// columns on the factors save too little.
const (
	negligible = 1e-9
	narrow     = 4
)

// descend takes the steps of Adam on rows.
func (w *wudi) descend(tau, right linalg.Matrix) error {
	grad := linalg.New(tau.Rows, tau.Cols)
	inner := linalg.New(tau.Rows, w.factor.Rows)
	m, v := make([]float64, len(tau.Data)), make([]float64, len(tau.Data))
	c1, c2 := 1.0, 1.0
	for range w.o.Iterations {
		if w.factor.Rows > 0 {
			w.s.Mul(inner, tau, w.factor, linalg.Product{TransB: true})
			w.s.Mul(grad, inner, w.factor, linalg.Product{})
		} else {
			w.s.Mul(grad, tau, w.h, linalg.Product{})
		}

		c1, c2 = c1*beta1, c2*beta2
		rate, scale := w.o.Rate/(1-c1), 1/(1-c2)
		mmapsafe.Split(w.s.Threads, tau.Rows, func(lo, hi int) {
			for i := lo * tau.Cols; i < hi*tau.Cols; i++ {
				g := 2 * (grad.Data[i] - right.Data[i])
				m[i] = beta1*m[i] + (1-beta1)*g
				v[i] = beta2*v[i] + (1-beta2)*g*g
				tau.Data[i] -= rate * m[i] / (math.Sqrt(v[i]*scale) + adamEps)
			}
		})
		if err := stopped(w.s); err != nil {
			return err
		}
	}
	return nil
}

// invert factors H + λI.
func (w *wudi) invert() error {
	trace := 0.0
	for i := range w.Cols {
		trace += w.h.At(i, i)
	}
	w.lambda = w.o.Damping * trace / float64(w.Cols)

	for i := range w.Cols {
		w.h.Set(i, i, w.h.At(i, i)+w.lambda)
	}
	w.factor = linalg.New(w.Cols, w.Cols)
	_, err := w.s.Damped(w.factor, 1e-9, func(h linalg.Matrix) { h.Copy(w.h) },
		func(h linalg.Matrix) error { return w.s.Cholesky(h, false) })
	return err
}

// solved is (R + λ·sum)(H + λI)⁻¹ of rows.
func (w *wudi) solved(sum, right linalg.Matrix) (linalg.Matrix, error) {
	for i, v := range sum.Data {
		right.Data[i] += w.lambda * v
	}
	x := right.T()
	if err := w.s.CholeskySolve(w.factor, x, false); err != nil {
		return x, err
	}
	return x.T(), nil
}
