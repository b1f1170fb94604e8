package delta

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Forward implements [lm.Delta]: y += scale·B·A·x, and what DoRA makes of that.
func (r *Runtime) Forward(l lm.Linear, x, y kernels.Mat) error {
	m, ok := r.modules[l.Name]
	if !ok {
		return fmt.Errorf("%s: adapter was detached", l.Name)
	}

	w := r.work()
	defer r.spare.Put(w)

	if r.writes(m) {
		return r.forwardWritten(w, m, x, y)
	}

	// The order is PEFT's: dropout acts on the adapter's input only, the base sees x.
	t, err := r.narrowed(w, m, x.Rows)
	if err != nil {
		return err
	}

	in, err := r.dropped(w, m, x)
	if err != nil {
		return err
	}

	r.narrow(m, t, in, m.a, m.fa)
	if m.dora != nil {
		return r.forwardDirection(m, t, y)
	}

	return r.widen(m, y, t, m.bt, m.bias)
}

// skinny reports whether the products that make x·aᵀ read x as it lies, with few rows: the result is then
// turned around, [rank, rows]. On the CPU a product with few rows on the left reads the right side once, without
// packing it (see package cpu); so A, of few rows, is taken for the left side and x for the "weight".
func (r *Runtime) skinny(m *module) bool { return r.host && m.low.Rank <= skinny }

// narrow computes t = x·fᵀ, turned around where that is the faster way.
func (r *Runtime) narrow(m *module, t, x, f, wide kernels.Mat) {
	if r.skinny(m) {
		r.ops.MatMulNT(t, wide, x, kernels.MatMul{})
		return
	}
	r.ops.MatMulNT(t, x, f, kernels.MatMul{Precision: r.m.Precision()})
}

// widen adds t·f, and a bias, to y.
func (r *Runtime) widen(m *module, y, t, f, bias kernels.Mat) error {
	if r.skinny(m) {
		// A workspace of its own: the caller's may hold what is turned around here.
		w := r.work()
		defer r.spare.Put(w)

		back, err := w.mat(wTurned, t.Cols, t.Rows)
		if err != nil {
			return err
		}

		turn(back, t)
		t = back
	}

	r.ops.MatMulNN(y, t, f, kernels.MatMul{Precision: r.m.Precision(), Accumulate: true, Bias: bias})
	return nil
}

// narrowed is where x·aᵀ goes: in training it is kept for the backward pass.
func (r *Runtime) narrowed(w *workspace, m *module, rows int) (kernels.Mat, error) {
	if !r.train {
		return r.narrowMat(w, m, wT, rows)
	}
	if err := grow(r.dev, &m.t, rows*m.low.Rank); err != nil {
		return kernels.Mat{}, err
	}
	return r.kept(m, rows), nil
}

// kept is x·aᵀ of the latest forward pass.
func (r *Runtime) kept(m *module, rows int) kernels.Mat {
	if r.skinny(m) {
		return kernels.MatOf(m.t, m.low.Rank, rows)
	}
	return kernels.MatOf(m.t, rows, m.low.Rank)
}

// narrowMat is a matrix of the workspace for what narrow computes.
func (r *Runtime) narrowMat(w *workspace, m *module, slot, rows int) (kernels.Mat, error) {
	if r.skinny(m) {
		return w.mat(slot, m.low.Rank, rows)
	}
	return w.mat(slot, rows, m.low.Rank)
}

// dropped is x, or what dropout leaves of it.
func (r *Runtime) dropped(w *workspace, m *module, x kernels.Mat) (kernels.Mat, error) {
	if !r.dropping {
		return x, nil
	}
	d, err := w.mat(wX, x.Rows, x.Cols)
	if err != nil {
		return d, err
	}
	return d, r.drop(m, d, x)
}

// drop writes x after the module's mask to dst, which may be x.
func (r *Runtime) drop(m *module, dst, x kernels.Mat) error {
	// Four neighbours share one random number, so a row begins at a multiple of four, whatever its width.
	key, width := r.mask.With(uint64(m.key)), uint64(x.Cols+3)/4*4
	return r.edit(dst, x, func(i int, to, from []float32) {
		key.Dropout(to, from, uint64(i)*width, r.a.Config.Dropout)
	})
}

// backward takes the gradient dy through a linear's change: it adds to dx, and in training to the gradients of the
// parameters.
func (r *Runtime) backward(l lm.Linear, x, dy, dx kernels.Mat) error {
	m, ok := r.modules[l.Name]
	if !ok {
		return fmt.Errorf("%s: adapter was detached", l.Name)
	}

	w := r.work()
	defer r.spare.Put(w)

	if r.writes(m) {
		return r.backwardWritten(w, m, x, dy, dx)
	}

	// What follows is the backward pass of the plain sum; DoRA's scaling comes before it.
	dz := dy
	if m.dora != nil {
		var err error
		if dz, err = r.backwardDirection(w, m, x, dy, dx); err != nil {
			return err
		}
	}

	dt, err := r.narrowMat(w, m, wDT, x.Rows)
	if err != nil {
		return err
	}

	r.narrow(m, dt, dz, m.bt, m.fb)

	if r.train {
		if err := r.gradients(w, m, x, dz, dt); err != nil {
			return err
		}
	}

	return r.inputGradient(w, m, dt, dx)
}

// inputGradient adds the gradient that reaches x through the factors.
func (r *Runtime) inputGradient(w *workspace, m *module, dt, dx kernels.Mat) error {
	if !r.dropping {
		return r.widen(m, dx, dt, m.a, kernels.Mat{})
	}

	// The mask acts on what comes through A alone, and dx holds the base's part too: it is masked apart and added.
	d, err := w.mat(wDX, dx.Rows, dx.Cols)
	if err != nil {
		return err
	}

	if err := r.edit(d, kernels.Mat{}, func(_ int, to, _ []float32) { clear(to) }); err != nil {
		return err
	}

	if err := r.widen(m, d, dt, m.a, kernels.Mat{}); err != nil {
		return err
	}
	if err := r.drop(m, d, d); err != nil {
		return err
	}

	r.ops.Add(dx, dx, d, 1)
	return nil
}

// gradients adds to those of the parameters.
func (r *Runtime) gradients(w *workspace, m *module, x, dz, dt kernels.Mat) error {
	// The same mask as in the forward pass comes out of the same key.
	t := r.kept(m, x.Rows)
	in, err := r.dropped(w, m, x)
	if err != nil {
		return err
	}

	da, err := w.mat(wDA, m.low.Rank, x.Cols)
	if err != nil {
		return err
	}

	dbt, err := w.mat(wDB, m.low.Rank, dz.Cols)
	if err != nil {
		return err
	}

	// A that is not trained needs no gradient, on the host, whose Scatter does not read it.
	if _, fixed := m.low.Factors.(adapter.Fixed); !fixed {
		if err := r.outer(w, m, da, dt, in); err != nil {
			return err
		}
	}
	if err := r.outer(w, m, dbt, t, dz); err != nil {
		return err
	}

	// dt has no scale in it, so da wants it; t has, so dbt does not.
	if r.host {
		scale(da, m.low.Scale)
		m.low.Scatter(da, dbt)
		return r.biasGradient(w, m, dz)
	}

	if r.resident != nil {
		r.resident.scatter(m.low, da, dbt)
		return nil
	}

	ha, err := r.fetch(w, 0, da)
	if err != nil {
		return err
	}

	hb, err := r.fetch(w, 1, dbt)
	if err != nil {
		return err
	}

	scale(ha, m.low.Scale)
	m.low.Scatter(ha, hb)
	return r.biasGradient(w, m, dz)
}

// skinny is the largest rank for which a product with few rows is the fastest way to a factor's gradient.
const skinny = 16

// outer computes dst[rank, n] = tᵀ·x. What is turned around already reads x once and as it lies.
func (r *Runtime) outer(w *workspace, m *module, dst, t, x kernels.Mat) error {
	switch {
	case r.skinny(m):
		r.ops.MatMulNN(dst, t, x, kernels.MatMul{})
	case !r.host:
		r.ops.MatMulTN(dst, t, x, kernels.MatMul{})
	default:
		turned, err := w.mat(wTurned, x.Cols, t.Cols)
		if err != nil {
			return err
		}
		r.ops.MatMulTN(turned, x, t, kernels.MatMul{})
		turn(dst, turned)
	}

	return nil
}

// turn writes the transpose of src.
func turn(dst, src kernels.Mat) {
	from, to := src.Buf.F32()[src.Off:], dst.Buf.F32()[dst.Off:]
	for i := range src.Rows {
		for j, v := range from[i*src.Stride : i*src.Stride+src.Cols] {
			to[j*dst.Stride+i] = v
		}
	}
	dst.Buf.Changed()
}

// biasGradient adds to the gradient of the bias beside B.
func (r *Runtime) biasGradient(w *workspace, m *module, dz kernels.Mat) error {
	if m.low.Bias == nil {
		return nil
	}

	sum, err := r.columnSums(w, dz)
	if err != nil {
		return err
	}

	g := m.low.Bias.Grad.RowF32(0)
	for i, v := range sum {
		g[i] += float32(m.low.Scale) * v
	}

	return nil
}

// columnSums adds the rows of x up.
func (r *Runtime) columnSums(w *workspace, x kernels.Mat) ([]float32, error) {
	acc, err := w.mat(wRow, 1, x.Cols)
	if err != nil {
		return nil, err
	}

	if err := r.edit(acc, kernels.Mat{}, func(_ int, to, _ []float32) { clear(to) }); err != nil {
		return nil, err
	}

	r.ops.ColSum(acc, x)
	h, err := r.fetch(w, 0, acc)
	if err != nil {
		return nil, err
	}

	return h.RowF32(0), nil
}
