// Package admm changes the kept weights of a matrix so that its outputs over the calibration data stay close to
// those of the dense one: least squares on the support of a mask, by the alternating directions of ADMM-Grad
// (arXiv:2401.02938) and conjugate gradients on the support that remains, as ALPS has them (arXiv:2406.07831).
package admm

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Job is one matrix. All matrices are dense and in host memory.
type Job struct {
	W    kernels.Mat   // F32 [out, in], overwritten
	H    linalg.Matrix // [in, in] symmetric, up to a factor Σ x xᵀ; its diagonal has no zero
	Mask kernels.Mat   // U8 [out, in], 1 = kept

	Ridge   float64 // added to the diagonal of H, which is scaled to 1
	Rho     float64 // weight of the penalty
	Steps   int     // alternations
	Rechose int     // of which the first so many choose the mask anew
	Polish  int     // conjugate-gradient steps with the mask at the end

	// Choose writes the keep mask for scores F32 [out, in]; required with Rechose.
	Choose  func(mask, score kernels.Mat) error
	Mul     func(dst, x, w kernels.Mat) // dst += x·w, F32
	Stop    func(done, steps int) error // called between steps
	Threads int
	Device  kernels.Device // that large matrices are factored on; nil: the host
}

// Run updates W. The columns of H are scaled to a diagonal of 1 first, those of W against it.
func (j Job) Run() error {
	s := linalg.Solver{Threads: j.Threads, Device: j.Device}
	n := j.W.Cols

	scale := make([]float64, n)
	for c := range scale {
		if scale[c] = math.Sqrt(j.H.At(c, c)); !(scale[c] > 0) {
			return fmt.Errorf("input %d: %w: its mean square is %g", c, linalg.ErrSingular, j.H.At(c, c))
		}
	}

	// With a diagonal of 1 the ridge and ρ mean the same for every input, however large it is.
	h := linalg.New(n, n)
	for a := range n {
		src, dst := j.H.Row(a), h.Row(a)
		for b, v := range src {
			dst[b] = v / (scale[a] * scale[b])
		}
		dst[a] += j.Ridge
	}

	j.columns(j.W, func(c int, v float32) float32 { return float32(float64(v) * scale[c]) })
	state, err := j.begin(s, h)
	if err != nil {
		return err
	}

	for k := range j.Steps {
		if err := j.stop(k); err != nil {
			return err
		}
		if err := j.step(state, k < j.Rechose); err != nil {
			return err
		}
	}

	if err := j.polish(state); err != nil {
		return err
	}

	j.columns(j.W, func(c int, v float32) float32 { return float32(float64(v) / scale[c]) })
	return nil
}

func (j Job) stop(done int) error {
	if j.Stop == nil {
		return nil
	}
	return j.Stop(done, j.Steps+j.Polish)
}

// state is what the alternation keeps. Matrices [out, in] but the two [in, in].
type state struct {
	h, inverse  kernels.Mat // H, (H + ρI)⁻¹
	target      kernels.Mat // W₀·H
	free, dual  kernels.Mat // W without the mask, U
	work, score kernels.Mat
}

func (j Job) begin(s linalg.Solver, h linalg.Matrix) (*state, error) {
	n := h.Rows
	st := &state{h: f32(n, n)}
	h.ToF32(st.h)
	st.target = f32(j.W.Rows, n)
	j.Mul(st.target, j.W, st.h)

	if j.Steps == 0 {
		j.masked(j.W)
		return st, nil
	}

	// The inverse once, and a product in every step: H + ρI does not change, and there are as many right sides as rows.
	for i := range n {
		h.Data[i*h.Stride+i] += j.Rho
	}
	if err := s.Cholesky(h, true); err != nil {
		return nil, err
	}
	if err := s.CholeskyInverse(h, true); err != nil {
		return nil, err
	}

	st.inverse = f32(n, n)
	h.ToF32(st.inverse)
	st.free = f32(j.W.Rows, n)
	st.dual = f32(j.W.Rows, n)
	st.work = f32(j.W.Rows, n)
	if j.Rechose > 0 {
		st.score = f32(j.W.Rows, n)
	}
	for i := range j.W.Rows {
		copy(st.free.RowF32(i), j.W.RowF32(i))
	}

	return st, nil
}

// step: Z = mask·(W + U), U += W - Z, W = (W₀H + ρ(Z - U))·(H + ρI)⁻¹. Z is in Job.W.
func (j Job) step(s *state, choose bool) error {
	if choose {
		j.rows(func(i int) {
			sum := s.score.RowF32(i)
			w := s.free.RowF32(i)
			u := s.dual.RowF32(i)
			for c := range sum {
				sum[c] = float32(math.Abs(float64(w[c] + u[c])))
			}
		})

		s.score.Buf.Changed()
		if err := j.Choose(j.Mask, s.score); err != nil {
			return err
		}
	}

	rho := float32(j.Rho)
	j.rows(func(i int) {
		keep := j.Mask.RowU8(i)
		z := j.W.RowF32(i)
		w := s.free.RowF32(i)
		u := s.dual.RowF32(i)

		t, x := s.target.RowF32(i), s.work.RowF32(i)
		for c := range z {
			z[c] = 0
			if keep[c] != 0 {
				z[c] = w[c] + u[c]
			}
			u[c] += w[c] - z[c]
			x[c] = t[c] + rho*(z[c]-u[c])
		}

		clear(w)
	})

	s.work.Buf.Changed()
	s.free.Buf.Changed()
	j.Mul(s.free, s.work, s.inverse)

	// Z once more with the new W: it is what Job.W holds if this was the last step.
	j.rows(func(i int) {
		keep := j.Mask.RowU8(i)
		z := j.W.RowF32(i)
		w := s.free.RowF32(i)
		u := s.dual.RowF32(i)
		for c := range z {
			if keep[c] != 0 {
				z[c] = w[c] + u[c]
			}
		}
	})

	j.W.Buf.Changed()
	return nil
}

// polish takes conjugate-gradient steps on Z·H = W₀·H within the mask, every row by itself.
func (j Job) polish(s *state) error {
	if j.Polish == 0 {
		return nil
	}

	rows, n := j.W.Rows, j.W.Cols
	r := f32(rows, n)
	p := f32(rows, n)
	q := f32(rows, n)
	j.Mul(r, j.W, s.h)
	j.rows(func(i int) {
		a, t := r.RowF32(i), s.target.RowF32(i)
		for c := range a {
			a[c] = t[c] - a[c]
		}
	})

	// Residuals and directions stay inside the mask, so these are conjugate gradients on H with the rows and columns of
	// the kept weights, which are others in every row of W, without ever cutting H out.
	j.masked(r)
	norm := make([]float64, rows)
	for i := range rows {
		copy(p.RowF32(i), r.RowF32(i))
		norm[i] = dot(r.RowF32(i), r.RowF32(i))
	}

	for k := range j.Polish {
		if err := j.stop(j.Steps + k); err != nil {
			return err
		}

		j.rows(func(i int) { clear(q.RowF32(i)) })
		p.Buf.Changed()
		q.Buf.Changed()
		j.Mul(q, p, s.h)
		j.masked(q)
		j.rows(func(i int) { conjugate(j.W.RowF32(i), r.RowF32(i), p.RowF32(i), q.RowF32(i), &norm[i]) })
	}

	j.W.Buf.Changed()
	return nil
}

// conjugate takes one step of a row: x += αp, r -= αq, p = r + βp. norm is r·r.
func conjugate(x, r, p, q []float32, norm *float64) {
	curve := dot(p, q)
	if !(curve > 0) || *norm == 0 { // done, or H is no longer definite in float32
		return
	}

	alpha := float32(*norm / curve)
	for c := range x {
		x[c] += alpha * p[c]
		r[c] -= alpha * q[c]
	}

	next := dot(r, r)
	beta := float32(next / *norm)
	for c := range p {
		p[c] = r[c] + beta*p[c]
	}

	*norm = next
}

func dot(a, b []float32) float64 {
	var s0, s1 float64
	i := 0
	for ; i+1 < len(a); i += 2 {
		s0 += float64(a[i]) * float64(b[i])
		s1 += float64(a[i+1]) * float64(b[i+1])
	}

	if i < len(a) {
		s0 += float64(a[i]) * float64(b[i])
	}

	return s0 + s1
}

// masked zeroes what the mask drops.
func (j Job) masked(x kernels.Mat) {
	j.rows(func(i int) {
		row := x.RowF32(i)
		for c, keep := range j.Mask.RowU8(i) {
			if keep == 0 {
				row[c] = 0
			}
		}
	})
	x.Buf.Changed()
}

func (j Job) columns(x kernels.Mat, f func(c int, v float32) float32) {
	j.rows(func(i int) {
		row := x.RowF32(i)
		for c, v := range row {
			row[c] = f(c, v)
		}
	})
	x.Buf.Changed()
}

// rows calls f for every row, from several goroutines.
func (j Job) rows(f func(i int)) {
	mmapsafe.Split(j.Threads, j.W.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f(i)
		}
	})
}

func f32(rows, cols int) kernels.Mat {
	return kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
}
