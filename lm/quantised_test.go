package lm

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest"
	"github.com/modelcompress/compress/lm/internal/quant"
)

// TestQuantised: a model in few bits computes what one with the widened matrices computes, forward and
// backward, is near the original, and stays what it is when a block is released.
func TestQuantised(t *testing.T) {
	dir := filepath.Join("..", "testdata", "nano", "base")
	dev, err := device.Open("cpu", device.Options{})
	if err != nil {
		t.Fatal(err)
	}

	ids := [][]int32{{5, 9, 33, 12, 7, 81, 40, 2}, {1, 2, 3, 4}}
	plain := load(t, dir, dev, Options{})
	want, err := plain.Forward(context.Background(), ids, ForwardOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for _, bits := range []int{8, 4} {
		m := load(t, dir, dev, Options{Bits: bits})
		r, err := m.Backward(context.Background(), ids, BackwardOptions{Keep: 0})
		if err != nil {
			t.Fatal(err)
		}

		// 8 bits move a loss by less than 1 %, 4 bits by a few.
		if gap := math.Abs(r.Loss - want.Loss); gap > map[int]float64{8: 0.01, 4: 0.1}[bits]*want.Loss || gap == 0 {
			t.Errorf("%d bits: loss %v, unquantised %v", bits, r.Loss, want.Loss)
		}

		other := load(t, dir, dev, Options{})
		for l := range m.Blocks() {
			for _, lin := range m.Linears(l) {
				wide, err := m.Param(lin.Name)
				if err != nil {
					t.Fatal(err)
				}

				to, err := other.MutableParam(lin.Name)
				if err != nil {
					t.Fatal(err)
				}

				dev.Ops().Convert(to, wide)
				to.Buf.Changed()
			}

			m.ReleaseBlock(l, false)
		}

		again, err := m.Forward(context.Background(), ids, ForwardOptions{})
		if err != nil {
			t.Fatal(err)
		}

		same, err := other.Forward(context.Background(), ids, ForwardOptions{})
		if err != nil {
			t.Fatal(err)
		}

		// Quantised and widened weights give the same bits in the same pass. The backward pass has an operation
		// of its own for the loss, whose sum over the vocabulary may take another order.
		if gap := math.Abs(again.Loss - r.Loss); same.Loss != again.Loss ||
			gap > kerneltest.Rounding(m.Config().Vocab)*again.Loss {
			t.Errorf("%d bits: losses %v, widened %v, in the backward pass %v", bits, again.Loss, same.Loss, r.Loss)
		}
	}

	if _, err := Load(context.Background(), dir, dev, Options{Bits: 5}); !errors.Is(err, quant.ErrBits) {
		t.Errorf("5 bits: %v", err)
	}
}
