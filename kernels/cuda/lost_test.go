//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
)

// TestLostInTheMiddle loses the device at each launch of operations that are made of several: gradients of
// attention, formulas with a compilation beside them, merges with cuts, products by cuBLASLt. Whatever was
// computed before is right, every later call fails, none hangs, and all is given back.
func TestLostInTheMiddle(t *testing.T) {
	for at := 1; at <= 46; at += 9 {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			d, _, _, f := withBLAS(t, fmt.Sprintf("lost@%d", at))
			d.CompileAfter(1)
			err := severalLaunches(t, d)
			if !errors.Is(err, cuda.ErrLost) {
				t.Fatalf("error %v", err)
			}

			if err := d.Ops().Sync(); !errors.Is(err, cuda.ErrLost) {
				t.Errorf("the next Sync: error %v", err)
			}

			d.Close()
			held := make([]int32, 6)
			f.held(&held[0])
			if held[4] != 0 || held[5] != 0 {
				t.Errorf("%d modules and %d contexts were not given back", held[4], held[5])
			}
		})
	}
}

// severalLaunches runs the operations, more than 46 launches, and returns the first error. A download that
// succeeds gives right numbers.
func severalLaunches(t *testing.T, d *cuda.Device) error {
	t.Helper()
	var failed error
	m := func(rows, cols int) kernels.Mat {
		b, err := d.Alloc(kernels.F32, rows*cols)
		if err == nil {
			err = d.Upload(b, 0, kernelBytes(floats(uint64(rows), rows*cols)))
		}
		failed = errors.Join(failed, err)
		if b == nil {
			return kernels.Mat{}
		}
		return kernels.MatOf(b, rows, cols)
	}

	a := m(176, 176)
	b := m(176, 176)
	c := m(176, 176)

	lse := m(176, 11)
	dq := m(176, 176)
	dk := m(176, 176)
	dv := m(176, 176)
	mask, err := d.Alloc(kernels.U8, 176*176)
	if failed = errors.Join(failed, err); failed != nil {
		return failed
	}

	at := kernels.Attention{Heads: 11, KVHeads: 11, HeadDim: 16, Scale: 0.25, LSE: lse.RowRange(0, 20)}
	q := a.RowRange(0, 20)

	out := c.RowRange(0, 20)
	dout := b.RowRange(0, 20)
	in := cuda.FormulaInputs{Matrices: []kernels.Mat{a}}
	for range 4 {
		d.Ops().MatMulNT(c, a, b, kernels.MatMul{Precision: kernels.Fast})
		d.Ops().Attention(out, q, b, a, at)
		d.Ops().AttentionBackward(dq.RowRange(0, 20), dk, dv, dout, q, b, a, out, at)
		err = errors.Join(
			d.SelectFormula(kernels.MatOf(mask, 176, 176), numbered(3), in, 40),
			d.Merge(c, a, []cuda.Source{{M: b, Weight: 1, Keep: 100}}, cuda.Arithmetic{Lambda: 1}), d.Ops().Sync())
		if failed = errors.Join(failed, err); failed != nil {
			return failed
		}

		got := make([]byte, 176*176)
		if failed = d.Download(got, mask, 0); failed != nil {
			return failed
		}

		kept := 0
		for _, v := range got {
			kept += int(v)
		}
		if kept != 176*136 {
			t.Errorf("%d elements are kept", kept)
		}
	}

	return nil
}
