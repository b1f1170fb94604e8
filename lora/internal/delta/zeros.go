package delta

import (
	"fmt"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/sparse"
)

// An adapter that keeps zeros changes W to W + M∘(sBA), M being 0 where W is 0 and 1 elsewhere. M∘(sBA) has no
// narrow factors, so that the product of a pass is one with a matrix as large as W, forward and twice in the
// backward pass: a step costs about 1.7 times as much as without. The matrix is made anew in every pass,
// which is little beside the product with all tokens and takes the memory of one matrix, not of all.

// A change of single elements (SHiRA) goes the same way on the CPU: it has no narrow factors either, and its gradient
// is that of the matrix at its places. With few rows, as in generation, its elements are multiplied one by one instead.

// keepable refuses to keep zeros where that cannot be computed.
func (r *Runtime) keepable() error {
	if !r.host {
		return failure.Hinted(fmt.Errorf("%w: an adapter that keeps zeros acts on the CPU only",
			adapter.ErrUnsupported), "--device cpu, or lora fold writes it into the weights")
	}

	for _, l := range r.a.Low {
		if l.Magnitude != nil {
			return fmt.Errorf("%w: DoRA divides by norms of the whole change, of which keeping zeros leaves a part",
				adapter.ErrUnsupported)
		}
	}

	return nil
}

// keeps reports whether a module's change leaves zeros of its matrix alone.
func (r *Runtime) keeps() bool { return r.a.Config.KeepZeros }

// written is M∘(sBA), or the elements of a sparse change, in the layout of the matrix.
func (r *Runtime) written(w *workspace, m *module) (kernels.Mat, error) {
	rows, cols := m.shape()
	d, err := w.mat(wWritten, rows, cols)
	if err != nil {
		return d, err
	}

	if m.elements != nil {
		for i := range rows {
			clear(d.RowF32(i))
		}
		m.elements.AddTo(d, float32(m.low.Scale), m.lin.Transposed)
		d.Buf.Changed()
		return d, r.clearZeros(d, m)
	}

	left, right := m.fb, m.fa
	if m.lin.Transposed {
		left, right = right, left
	}

	r.ops.MatMulTN(d, left, right, kernels.MatMul{})
	return d, r.clearZeros(d, m)
}

// clearZeros sets elements of x to zero where the module's matrix is, if the adapter keeps zeros.
func (r *Runtime) clearZeros(x kernels.Mat, m *module) error {
	if !r.keeps() {
		return nil
	}
	weight, err := r.m.Param(m.lin.Name)
	if err != nil {
		return err
	}
	return sparse.Clear(x, weight, r.dev.Info().Threads)
}

// shape is that of the module's matrix as it is stored.
func (m *module) shape() (rows, cols int) {
	if m.lin.Transposed {
		return m.lin.In, m.lin.Out
	}
	return m.lin.Out, m.lin.In
}

// writes reports whether the change of a module is written out in every pass.
func (r *Runtime) writes(m *module) bool { return r.keeps() || m.elements != nil }

// fewRows is up to how many rows the elements of a sparse change are multiplied one by one.
const fewRows = 16

// forwardElements adds what the elements of a sparse change make of some rows.
func (m *module) forwardElements(x, y kernels.Mat) {
	s, scale := m.elements, float32(m.low.Scale)
	values := s.Value.Data()
	for t := range x.Rows {
		in, out := x.RowF32(t), y.RowF32(t)
		for i, o := range s.Rows {
			out[o] += scale * values[i] * in[s.Cols[i]]
		}
	}
	y.Buf.Changed()
}

// forwardWritten is the forward pass of a module whose change is written out.
func (r *Runtime) forwardWritten(w *workspace, m *module, x, y kernels.Mat) error {
	if m.elements != nil && x.Rows <= fewRows && !r.keeps() {
		m.forwardElements(x, y)
		return nil
	}

	d, err := r.written(w, m)
	if err != nil {
		return err
	}

	in, err := r.dropped(w, m, x)
	if err != nil {
		return err
	}

	o := kernels.MatMul{Accumulate: true, Bias: m.bias}
	if m.lin.Transposed {
		r.ops.MatMulNN(y, in, d, o)
	} else {
		r.ops.MatMulNT(y, in, d, o)
	}

	return nil
}

// backwardWritten is the backward pass of a module whose change is written out. The gradient of the factors is that of
// the matrix where it may change.
func (r *Runtime) backwardWritten(w *workspace, m *module, x, dy, dx kernels.Mat) error {
	if r.train {
		if err := r.gradientsWritten(w, m, x, dy); err != nil {
			return err
		}
	}

	d, err := r.written(w, m)
	if err != nil {
		return err
	}

	product := r.ops.MatMulNN
	if m.lin.Transposed {
		product = r.ops.MatMulNT
	}

	if !r.dropping {
		product(dx, dy, d, kernels.MatMul{Accumulate: true})
		return nil
	}

	// The mask of dropout is on the adapter's input, so its part of dx needs it, and the base's must not have it.
	through, err := w.mat(wDX, dx.Rows, dx.Cols)
	if err != nil {
		return err
	}

	product(through, dy, d, kernels.MatMul{})
	if err := r.drop(m, through, through); err != nil {
		return err
	}

	r.ops.Add(dx, dx, through, 1)
	return nil
}

// gradientsWritten adds to the gradients of a module's parameters.
func (r *Runtime) gradientsWritten(w *workspace, m *module, x, dy kernels.Mat) error {
	in, err := r.dropped(w, m, x)
	if err != nil {
		return err
	}

	rows, cols := m.shape()
	g, err := w.mat(wWritten, rows, cols)
	if err != nil {
		return err
	}

	left, right := dy, in
	if m.lin.Transposed {
		left, right = right, left
	}

	// With ΔW = M∘(sBA) and G = dyᵀ·x, the gradient of sBA is M∘G, and those of the factors follow as for any product.
	r.ops.MatMulTN(g, left, right, kernels.MatMul{})
	if err := r.clearZeros(g, m); err != nil {
		return err
	}
	if m.elements != nil {
		m.elements.Learn(g, float32(m.low.Scale), m.lin.Transposed)
		return nil
	}

	da, err := w.mat(wDA, m.low.Rank, m.low.Module.In)
	if err != nil {
		return err
	}

	dbt, err := w.mat(wDB, m.low.Rank, m.low.Module.Out)
	if err != nil {
		return err
	}

	toA, toB := r.ops.MatMulNN, r.ops.MatMulNT
	if m.lin.Transposed {
		toA, toB = toB, toA
	}

	toA(da, m.fb, g, kernels.MatMul{})
	toB(dbt, m.fa, g, kernels.MatMul{})
	scale(da, m.low.Scale)
	m.low.Scatter(da, dbt)

	return r.biasGradient(w, m, dy)
}
