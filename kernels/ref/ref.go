// Package ref is the reference backend: one plain loop per operation, sums in float64, one rounding at the end. It is
// the oracle that every other backend is tested against, and the fallback for operations that a backend does not have.
// The doc comment of a kernel is the loop it computes.
//
// # Use
//
//	dev := ref.New()
//	dev.Ops().Softmax(dst, src) // slow, in float64, rounded once
//
// It is the device to compare with when the results of another one are in doubt: device.Open("ref", device.Options{}).
package ref

import (
	"fmt"

	"github.com/modelcompress/compress/internal/memlimit"
	"github.com/modelcompress/compress/kernels"
)

// Device is ordinary memory with the reference operations.
type Device struct {
	ops kernels.Ops
}

// New opens the reference backend.
func New() kernels.Device {
	return &Device{ops: kernels.Ops{
		MatMulNT: matMulNT, MatMulNN: matMulNN, MatMulTN: matMulTN,
		MatMulSparse: matMulSparse, Expand: expand,
		MatMulQuantised: matMulQuantised, GatherQuantised: gatherQuantised, ExpandQuantised: expandQuantised,
		Gather: gather, ScatterAdd: scatterAdd, AddLowRank: addLowRank,
		RMSNorm: rmsNorm, LayerNorm: layerNorm, RoPE: rope, Attention: attention,
		Activate: activate, Gate: gate, Add: add, Softcap: softcap,
		Softmax: softmax, CrossEntropy: crossEntropy, Convert: convert,
		RMSNormBackward: rmsNormBackward, LayerNormBackward: layerNormBackward, AttentionBackward: attentionBackward,
		ActivateBackward: activateBackward, GateBackward: gateBackward, SoftcapBackward: softcapBackward,
		SoftmaxBackward: softmaxBackward, CrossEntropyBackward: crossEntropyBackward, GatherBackward: gatherBackward,
		ColSum: colSum, AddSquare: addSquare,
		ColSumSq: colSumSq, SelectRows: selectRows, SelectAll: selectAll, SelectNM: selectNM,
		ApplyMask: applyMask, NonFinite: nonFinite, CountZero: countZero,
		Sync: func() error { return nil },
	}}
}

// Info implements [kernels.Device]. The memory figures are unknown, hence 0.
func (d *Device) Info() kernels.Info { return kernels.Info{Name: "ref", Host: true, Threads: 1} }

// Alloc implements [kernels.Device].
func (d *Device) Alloc(t kernels.DType, n int) (*kernels.Buffer, error) {
	if n < 0 || n > maxAlloc/t.Size() {
		return nil, fmt.Errorf("ref: %d elements of %s are more than memory can hold", n, t)
	}
	if size := n * t.Size(); size >= memlimit.Large {
		if err := memlimit.Check(float64(size)); err != nil {
			return nil, fmt.Errorf("ref: %d elements of %s: %w", n, t, err)
		}
	}
	return kernels.NewHost(t, n), nil
}

// maxAlloc keeps a size in bytes, with the alignment slack, inside an int.
const maxAlloc = 1<<62 - 128

// Upload implements [kernels.Device].
func (d *Device) Upload(b *kernels.Buffer, off int, src []byte) error {
	if err := fits("upload", b, off, len(src)); err != nil {
		return err
	}
	copy(b.Bytes()[off*b.DType.Size():], src)
	b.Changed()
	return nil
}

// Download implements [kernels.Device].
func (d *Device) Download(dst []byte, b *kernels.Buffer, off int) error {
	if err := fits("download", b, off, len(dst)); err != nil {
		return err
	}
	copy(dst, b.Bytes()[off*b.DType.Size():])
	return nil
}

// Ops implements [kernels.Device].
func (d *Device) Ops() *kernels.Ops { return &d.ops }

// Close implements [kernels.Device].
func (d *Device) Close() error { return nil }

func fits(what string, b *kernels.Buffer, off, size int) error {
	if off < 0 || off > b.Len || size > (b.Len-off)*b.DType.Size() {
		return fmt.Errorf("ref: %s of %d bytes at element %d does not fit a buffer of %d %s", what, size, off, b.Len,
			b.DType)
	}
	return nil
}

// need panics when a precondition of an operation does not hold, which is a bug of the caller.
func need(ok bool, msg string) {
	if !ok {
		panic(msg)
	}
}

// sameShape reports whether all matrices have as many rows and columns as m.
func sameShape(m kernels.Mat, others ...kernels.Mat) bool {
	for _, o := range others {
		if o.Rows != m.Rows || o.Cols != m.Cols {
			return false
		}
	}
	return true
}

// row is row i of a weight as float32: in place when it is F32, otherwise widened into memory of its own.
func row(m kernels.Mat, i int) []float32 {
	if m.DType() == kernels.F32 {
		return m.RowF32(i)
	}

	widen := kernels.FromBF16
	if m.DType() == kernels.F16 {
		widen = kernels.FromF16
	}

	wide := make([]float32, m.Cols)
	for j, h := range m.RowU16(i) {
		wide[j] = widen(h)
	}

	return wide
}
