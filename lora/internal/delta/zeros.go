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
// backward pass: a step costs about two and a half times as much as without. The matrix is made anew in every pass,
// which is little beside the product with all tokens and takes the memory of one matrix, not of all.

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

// masked is M∘(sBA) in the layout of the matrix.
func (r *Runtime) masked(w *workspace, m *module) (kernels.Mat, error) {
	weight, err := r.m.Param(m.lin.Name)
	if err != nil {
		return kernels.Mat{}, err
	}

	d, err := w.mat(wMasked, weight.Rows, weight.Cols)
	if err != nil {
		return d, err
	}

	left, right := m.fb, m.fa
	if m.lin.Transposed {
		left, right = right, left
	}

	r.ops.MatMulTN(d, left, right, kernels.MatMul{})
	return d, sparse.Clear(d, weight)
}

// forwardMasked is the forward pass of a module that keeps zeros.
func (r *Runtime) forwardMasked(w *workspace, m *module, x, y kernels.Mat) error {
	d, err := r.masked(w, m)
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

// backwardMasked is the backward pass of a module that keeps zeros. The gradient of the factors is that of the
// matrix where it may change.
func (r *Runtime) backwardMasked(w *workspace, m *module, x, dy, dx kernels.Mat) error {
	if r.train {
		if err := r.gradientsMasked(w, m, x, dy); err != nil {
			return err
		}
	}

	d, err := r.masked(w, m)
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

// gradientsMasked adds to the gradients of a module's parameters.
func (r *Runtime) gradientsMasked(w *workspace, m *module, x, dy kernels.Mat) error {
	in, err := r.dropped(w, m, x)
	if err != nil {
		return err
	}

	weight, err := r.m.Param(m.lin.Name)
	if err != nil {
		return err
	}

	g, err := w.mat(wMasked, weight.Rows, weight.Cols)
	if err != nil {
		return err
	}

	left, right := dy, in
	if m.lin.Transposed {
		left, right = right, left
	}

	// With ΔW = M∘(sBA) and G = dyᵀ·x, the gradient of sBA is M∘G, and those of the factors follow as for any product.
	r.ops.MatMulTN(g, left, right, kernels.MatMul{})
	if err := sparse.Clear(g, weight); err != nil {
		return err
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
