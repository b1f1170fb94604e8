package delta

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// direction is what DoRA (Liu et al., arXiv 2402.09353) knows about a module: W' = diag(m/n)·(W + s·B·A), n the
// norms of the rows of W + s·B·A, which the gradient takes as constants.
type direction struct {
	squares []float64 // of the rows of W
	norm    []float32 // n
	gain    []float32 // m/n
	bias    []float32 // of the base; nil: none
}

// norms computes n from ‖W‖² + 2·W·(sBA) + ‖sBA‖², with sums over the ranks in float64. bt is the transposed B
// on the host.
func (r *Runtime) norms(m *module, bt kernels.Mat) error {
	d := m.dora
	if d.squares == nil {
		if err := r.startDirection(m); err != nil {
			return err
		}
	}

	wa, err := r.weightTimes(m)
	if err != nil {
		return err
	}

	// ‖(sBA)_o‖² = b_o·(sA·sAᵀ)·b_oᵀ: with the Gram matrix of A's rows, a row of the change, as wide as the input, is
	// never written out.
	a := make([][]float32, m.low.Rank)
	gram := make([]float64, m.low.Rank*m.low.Rank)
	ha, err := r.hostFactor(m)
	if err != nil {
		return err
	}

	for i := range a {
		a[i] = ha.RowF32(i)
		for j := range i + 1 {
			s := 0.0
			for k, v := range a[i] {
				s += float64(v) * float64(a[j][k])
			}
			gram[i*len(a)+j], gram[j*len(a)+i] = s, s
		}
	}

	for o := range d.norm {
		sum := d.squares[o]
		for i := range a {
			b := float64(bt.RowF32(i)[o])
			sum += 2 * b * float64(wa.RowF32(i)[o])
			for j := range a {
				sum += b * float64(bt.RowF32(j)[o]) * gram[i*len(a)+j]
			}
		}

		d.norm[o] = float32(math.Sqrt(max(sum, 0))) // a difference of large numbers can end below 0
		if d.norm[o] == 0 {
			return fmt.Errorf("%w: output %d of the adapted matrix is all zero, DoRA cannot scale it",
				adapter.ErrUnsupported, o)
		}

		d.gain[o] = m.low.Magnitude.Data()[o] / d.norm[o]
	}

	return nil
}

func (r *Runtime) startDirection(m *module) error {
	// Once, since the base is frozen: ‖W‖² of each output is a part of ‖W + sBA‖² at every step.
	d := m.dora
	d.squares = make([]float64, m.lin.Out)
	d.norm = make([]float32, m.lin.Out)
	d.gain = make([]float32, m.lin.Out)
	err := r.weightRows(m, func(i int, row []float32) {
		for j, v := range row {
			if m.lin.Transposed {
				d.squares[j] += float64(v) * float64(v)
			} else {
				d.squares[i] += float64(v) * float64(v)
			}
		}
	})
	if err != nil || m.low.Module.Bias == "" {
		return err
	}

	b, err := r.m.Param(m.low.Module.Bias)
	if err != nil {
		return err
	}

	h, err := r.toHost(b)
	if err == nil {
		// The bias is no part of the direction: it is taken off before outputs are scaled, and added after.
		d.bias = append([]float32(nil), h.RowF32(0)...)
	}

	return err
}

// weightTimes is sA·Wᵀ, [rank, out], in host memory. The rows of A are few, so W is read once and as it lies.
func (r *Runtime) weightTimes(m *module) (kernels.Mat, error) {
	weight, err := r.m.Param(m.lin.Name)
	if err != nil {
		return kernels.Mat{}, err
	}

	buf, err := r.dev.Alloc(kernels.F32, m.low.Rank*m.lin.Out)
	if err != nil {
		return kernels.Mat{}, err
	}
	defer func() {
		if !r.host { // on a host device it is what is returned
			buf.Free()
		}
	}()

	dst := kernels.MatOf(buf, m.low.Rank, m.lin.Out)
	if m.lin.Transposed {
		r.ops.MatMulNN(dst, m.fa, weight, kernels.MatMul{})
	} else {
		r.ops.MatMulNT(dst, m.fa, weight, kernels.MatMul{})
	}

	return r.toHost(dst)
}

// hostFactor is the scaled A, as it was assembled.
func (r *Runtime) hostFactor(m *module) (kernels.Mat, error) { return r.toHost(m.fa) }

// toHost widens a matrix to F32 in host memory: a copy unless it is there already.
func (r *Runtime) toHost(x kernels.Mat) (kernels.Mat, error) {
	if r.host && x.DType() == kernels.F32 {
		return x, nil
	}

	buf, err := r.dev.Alloc(kernels.F32, x.Len())
	if err != nil {
		return kernels.Mat{}, err
	}

	wide := kernels.MatOf(buf, x.Rows, x.Cols)
	r.ops.Convert(wide, x)
	if r.host {
		return wide, nil
	}
	defer buf.Free()

	h := kernels.MatOf(kernels.NewHost(kernels.F32, x.Len()), x.Rows, x.Cols)
	return h, r.dev.Download(h.Buf.Bytes(), buf, 0)
}

// weightRows calls f with every stored row of the base's matrix.
func (r *Runtime) weightRows(m *module, f func(i int, row []float32)) error {
	w, err := r.m.Param(m.lin.Name)
	if err != nil {
		return err
	}

	const some = 256
	for lo := 0; lo < w.Rows; lo += some {
		h, err := r.toHost(w.RowRange(lo, min(lo+some, w.Rows)))
		if err != nil {
			return err
		}

		for i := range h.Rows {
			f(lo+i, h.RowF32(i))
		}
	}

	return nil
}

// forwardDirection turns y = Wx + b into diag(m/n)·(Wx + sBAx) + b.
func (r *Runtime) forwardDirection(m *module, t, y kernels.Mat) error {
	// The gain is that of the matrix: the base's bias, which the base has added already, stays as it is.
	d := m.dora
	if d.bias != nil {
		if err := r.edit(y, kernels.Mat{}, func(_ int, to, _ []float32) { addRow(to, d.bias, -1) }); err != nil {
			return err
		}
	}

	if err := r.widen(m, y, t, m.bt, kernels.Mat{}); err != nil {
		return err
	}
	return r.edit(y, kernels.Mat{}, func(_ int, to, _ []float32) {
		for o, g := range d.gain {
			to[o] *= g
		}
		addRow(to, d.bias, 1)
	})
}

// backwardDirection gives the gradient of Wx + sBAx, adds to that of the magnitudes, and to dx what W·x has
// more than the base alone.
func (r *Runtime) backwardDirection(w *workspace, m *module, x, dy, dx kernels.Mat) (kernels.Mat, error) {
	d := m.dora
	weight, err := r.m.Param(m.lin.Name)
	if err != nil {
		return kernels.Mat{}, err
	}

	if r.train {
		if err := r.magnitudeGradient(w, m, weight, x, dy); err != nil {
			return kernels.Mat{}, err
		}
	}

	dz, err := w.mat(wDZ, dy.Rows, dy.Cols)
	if err != nil {
		return dz, err
	}

	more, err := w.mat(wZ, dy.Rows, dy.Cols)
	if err != nil {
		return dz, err
	}

	if err := r.edit(dz, dy, func(_ int, to, from []float32) {
		for o, g := range d.gain {
			to[o] = from[o] * g
		}
	}); err != nil {
		return dz, err
	}

	// The base has added dy·W to dx already, as if its gain were 1; (dz - dy)·W is what is missing.
	r.ops.Add(more, dz, dy, -1)
	o := kernels.MatMul{Precision: r.m.Precision(), Accumulate: true}
	if m.lin.Transposed {
		r.ops.MatMulNT(dx, more, weight, o)
	} else {
		r.ops.MatMulNN(dx, more, weight, o)
	}

	return dz, nil
}

// magnitudeGradient adds Σ dy·(Wx + sBAx)/n.
func (r *Runtime) magnitudeGradient(w *workspace, m *module, weight, x, dy kernels.Mat) error {
	z, err := w.mat(wZ, dy.Rows, dy.Cols)
	if err != nil {
		return err
	}

	// Wx again: the forward pass scaled it in place, and keeping it for all matrices would take more memory than the
	// product takes time.
	o := kernels.MatMul{Precision: r.m.Precision()}
	if m.lin.Transposed {
		r.ops.MatMulNN(z, x, weight, o)
	} else {
		r.ops.MatMulNT(z, x, weight, o)
	}

	if err := r.widen(m, z, r.kept(m, x.Rows), m.bt, kernels.Mat{}); err != nil {
		return err
	}
	if err := r.edit(z, dy, func(_ int, to, from []float32) {
		for i, v := range from {
			to[i] *= v
		}
	}); err != nil {
		return err
	}

	sum, err := r.columnSums(w, z)
	if err != nil {
		return err
	}

	g := m.low.Magnitude.Grad.RowF32(0)
	for i, v := range sum {
		g[i] += v / m.dora.norm[i]
	}

	return nil
}

// addRow adds a vector, which may be absent, to a row.
func addRow(to, v []float32, sign float32) {
	for i, b := range v {
		to[i] += sign * b
	}
}
