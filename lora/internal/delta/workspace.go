package delta

import (
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// workspace is the memory of one call.
type workspace struct {
	dev  kernels.Device
	bufs [slots]*kernels.Buffer
	cpu  [2]*kernels.Buffer
}

// The matrices of a call.
const (
	wT  = iota // x·aᵀ, [rows, rank]
	wDT        // gradient of t
	wDA        // gradients of the factors
	wDB
	wX  // x after dropout
	wDX // its gradient
	wZ  // output without bias, of DoRA
	wDZ
	wRow
	wTurned  // a narrow matrix, turned around
	wWritten // a change that is written out, or its gradient
	slots
)

func (r *Runtime) work() *workspace { return r.spare.Get().(*workspace) }

// mat is a matrix on the device; its contents are undefined.
func (w *workspace) mat(slot, rows, cols int) (kernels.Mat, error) {
	if err := grow(w.dev, &w.bufs[slot], rows*cols); err != nil {
		return kernels.Mat{}, err
	}
	return kernels.MatOf(w.bufs[slot], rows, cols), nil
}

// host is a matrix in host memory; its contents are undefined.
func (w *workspace) host(slot, rows, cols int) kernels.Mat {
	if b := w.cpu[slot]; b == nil || b.Len < rows*cols {
		w.cpu[slot] = kernels.NewHost(kernels.F32, rows*cols)
	}
	w.cpu[slot].Changed()
	return kernels.MatOf(w.cpu[slot], rows, cols)
}

// grow replaces a buffer that is too small.
func grow(dev kernels.Device, b **kernels.Buffer, n int) error {
	if *b != nil && (*b).Len >= n {
		(*b).Changed()
		return nil
	}

	if *b != nil {
		(*b).Free()
		*b = nil
	}

	fresh, err := dev.Alloc(kernels.F32, n)
	if err == nil {
		*b = fresh
	}

	return err
}

// fetch gives the numbers of a matrix on the device in host memory: itself on host devices.
func (r *Runtime) fetch(w *workspace, slot int, x kernels.Mat) (kernels.Mat, error) {
	if r.host {
		return x, nil
	}

	h := w.host(slot, x.Rows, x.Cols)
	if x.Dense() {
		return h, r.dev.Download(f32Bytes(h), x.Buf, x.Off)
	}

	for i := range x.Rows {
		if err := r.dev.Download(f32Bytes(h.RowRange(i, i+1)), x.Buf, x.Off+i*x.Stride); err != nil {
			return kernels.Mat{}, err
		}
	}

	return h, nil
}

// edit lets f change the rows of dst, for which it also sees those of src (of the same height; absent: nil).
func (r *Runtime) edit(dst, src kernels.Mat, f func(i int, to, from []float32)) error {
	if r.host {
		parallel(dst.Rows, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				f(i, dst.RowF32(i), rowOf(src, i))
			}
		})

		dst.Buf.Changed()
		return nil
	}

	// f is Go code, so what it changes comes to the host, one row at a time.
	to := make([]float32, dst.Cols)
	raw := kernels.WrapF32(to).Bytes()
	var from []float32
	for i := range dst.Rows {
		if err := r.dev.Download(raw, dst.Buf, dst.Off+i*dst.Stride); err != nil {
			return err
		}

		if !src.IsZero() {
			from = make([]float32, src.Cols)
			if err := r.dev.Download(kernels.WrapF32(from).Bytes(), src.Buf, src.Off+i*src.Stride); err != nil {
				return err
			}
		}

		f(i, to, from)
		if err := r.dev.Upload(dst.Buf, dst.Off+i*dst.Stride, raw); err != nil {
			return err
		}
	}

	return nil
}

func rowOf(m kernels.Mat, i int) []float32 {
	if m.IsZero() {
		return nil
	}
	return m.RowF32(i)
}

// workers is how many goroutines share loops over rows; results do not depend on it.
const workers = 8

// parallel splits the rows 0 … n-1 among goroutines.
func parallel(n int, f func(lo, hi int)) {
	if n < 64 {
		f(0, n)
		return
	}
	mmapsafe.Split(workers, n, f)
}
