package delta

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// outside is a low-rank change of a matrix that no block has: the token table or the head. The changed matrix is made
// whole, and the factors' gradients come from that of the matrix. A table counts as stored [in, out].
type outside struct {
	r      *Runtime
	low    *adapter.Low
	turned bool // stored [in, out]

	a, bt kernels.Mat
	sum   kernels.Mat // W + scale·B·A, with DoRA
	norm  []float32   // its norms, with DoRA
}

// shape is that of the stored matrix.
func (w *outside) shape() (rows, cols int) {
	if w.turned {
		return w.low.Module.In, w.low.Module.Out
	}
	return w.low.Module.Out, w.low.Module.In
}

// compute adds scale·B·A to the base, and with DoRA gives it the trained magnitudes.
func (w *outside) compute(dst kernels.Mat) error {
	l := w.low
	if w.a.Buf == nil {
		w.a, w.bt = hostMat(l.Rank, l.Module.In), hostMat(l.Rank, l.Module.Out)
	}

	l.Assemble(w.a, w.bt)
	scale(w.a, l.Scale)
	left, right := w.bt, w.a
	if w.turned {
		left, right = right, left
	}
	if err := w.r.product(w.r.ops.MatMulTN, dst, left, right, true); err != nil || l.Magnitude == nil {
		return err
	}

	return w.direct(dst)
}

// direct scales the outputs of dst to the magnitudes.
func (w *outside) direct(dst kernels.Mat) error {
	if w.norm == nil {
		w.norm, w.sum = make([]float32, w.low.Module.Out), hostMat(dst.Rows, dst.Cols)
	}

	copy(w.sum.Buf.F32(), dst.Buf.F32())
	squares := make([]float64, len(w.norm))
	w.each(dst, func(o int, v float32) float32 {
		squares[o] += float64(v) * float64(v)
		return v
	})

	for o, s := range squares {
		if s == 0 {
			return fmt.Errorf("%w: %s: output %d is all zero, DoRA cannot scale it", adapter.ErrUnsupported,
				w.low.Module.Path, o)
		}
		w.norm[o] = float32(math.Sqrt(s))
	}

	m := w.low.Magnitude.Data()
	w.each(dst, func(o int, v float32) float32 { return v * (m[o] / w.norm[o]) })
	return nil
}

// each replaces every element by what f makes of it and the number of its output.
func (w *outside) each(x kernels.Mat, f func(o int, v float32) float32) {
	for i := range x.Rows {
		row := x.RowF32(i)
		for j, v := range row {
			o := i
			if w.turned {
				o = j
			}
			row[j] = f(o, v)
		}
	}
}

// learn takes the gradient of the changed matrix to the factors and magnitudes.
func (w *outside) learn(g kernels.Mat) error {
	l := w.low
	if l.Magnitude != nil {
		g = w.learnMagnitude(g)
	}

	da, dbt := hostMat(l.Rank, l.Module.In), hostMat(l.Rank, l.Module.Out)
	toA, toB := w.r.ops.MatMulNN, w.r.ops.MatMulNT
	if w.turned {
		toA, toB = toB, toA
	}
	if err := w.r.product(toA, da, w.bt, g, false); err != nil {
		return err
	}
	if err := w.r.product(toB, dbt, w.a, g, false); err != nil {
		return err
	}

	scale(da, l.Scale)
	l.Scatter(da, dbt)
	return nil
}

// learnMagnitude gives the gradient of W + scale·B·A.
func (w *outside) learnMagnitude(g kernels.Mat) kernels.Mat {
	inner := hostMat(g.Rows, g.Cols)
	copy(inner.Buf.F32(), g.Buf.F32()[g.Off:])
	sums := make([]float64, len(w.norm))
	at, sum := 0, w.sum.Buf.F32()
	w.each(inner, func(o int, v float32) float32 {
		sums[o] += float64(v) * float64(sum[at])
		at++
		return v
	})

	m, dm := w.low.Magnitude.Data(), w.low.Magnitude.Grad.RowF32(0)
	for o, s := range sums {
		dm[o] += float32(s / float64(w.norm[o]))
	}

	w.each(inner, func(o int, v float32) float32 { return v * (m[o] / w.norm[o]) })
	return inner
}

// product multiplies matrices in host memory on the device.
func (r *Runtime) product(f func(dst, a, b kernels.Mat, o kernels.MatMul), dst, a, b kernels.Mat,
	accumulate bool,
) error {
	if r.host {
		f(dst, a, b, kernels.MatMul{Accumulate: accumulate})
		dst.Buf.Changed()
		return nil
	}

	var on [3]kernels.Mat
	for i, m := range []kernels.Mat{dst, a, b} {
		buf, err := r.dev.Alloc(kernels.F32, m.Len())
		if err != nil {
			return err
		}
		defer buf.Free()

		if err := r.dev.Upload(buf, 0, f32Bytes(m)); err != nil {
			return err
		}

		on[i] = kernels.MatOf(buf, m.Rows, m.Cols)
	}

	f(on[0], on[1], on[2], kernels.MatMul{Accumulate: accumulate})
	return r.dev.Download(f32Bytes(dst), on[0].Buf, 0)
}

func hostMat(rows, cols int) kernels.Mat {
	return kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
}

// widen copies a matrix in host memory to F32.
func widen(dst, src kernels.Mat) {
	for i := range src.Rows {
		to := dst.RowF32(i)
		switch src.DType() {
		case kernels.F32:
			copy(to, src.RowF32(i))
		case kernels.BF16:
			for j, v := range src.RowU16(i) {
				to[j] = kernels.FromBF16(v)
			}
		default:
			for j, v := range src.RowU16(i) {
				to[j] = kernels.FromF16(v)
			}
		}
	}
}
