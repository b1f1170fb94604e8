package lm

import (
	"context"
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// BackwardBlock computes gradients inside one block, without the rest of the model: it runs block l on h, which
// stays as it is, lets loss give a number that depends on the block's output and write its gradient with
// respect to that output, and delivers the gradients of the block's parameters to [Hooks].WeightGrad and those
// of its output and of h (states l+1 and l) to HiddenGrad. The options' labels, objective and edits do not
// apply. [Model.OutputRMS] and [Model.OutputSquare] are such losses.
func (m *Model) BackwardBlock(ctx context.Context, l int, h *Hidden, loss func(out, grad kernels.Mat) (float64, error),
	o BackwardOptions,
) (float64, error) {
	b, err := m.beginBackward(h.Lens, o, nil)
	if err != nil {
		return 0, err
	}
	defer b.end()

	x, err := b.take(h.X.Rows, h.X.Cols)
	if err != nil {
		return 0, err
	}

	if b.d, err = b.take(h.X.Rows, h.X.Cols); err != nil {
		return 0, err
	}

	// A copy: h stays as it is, and the block adds to its stream in place.
	b.ops.Convert(x, h.X)
	b.tapes[l], b.needs[l] = &b.scratch.tape, b.wantsHidden(l)
	value := 0.0
	err = b.with(ctx, l, func(block *block) error {
		if err := b.Record(block.Block, x, &b.scratch.tape); err != nil {
			return err
		}
		if err := b.left(l, x); err != nil {
			return err
		}
		value, err = loss(x, b.d)
		return err
	})
	if err != nil {
		return 0, err
	}

	// After the loss, which writes the gradient that this hands on.
	if err := b.hidden(l + 1); err != nil {
		return value, err
	}
	if err := b.back(ctx, l); err != nil {
		return value, err
	}

	return value, b.hidden(l)
}

// OutputRMS is the root of the mean square of a block's output, for [Model.BackwardBlock]. Of all zeros the
// gradient is zero.
func (m *Model) OutputRMS(out, grad kernels.Mat) (float64, error) {
	sum, err := m.setup.SumSquares(out)
	if err != nil || sum == 0 {
		return 0, err
	}
	n := float64(out.Len())
	rms := math.Sqrt(sum / n)
	m.ops.Gather(grad, out, layer.Rows(out.Rows), float32(1/(n*rms)))
	return rms, nil
}

// OutputSquare is the sum of the squares of a block's output, for [Model.BackwardBlock].
func (m *Model) OutputSquare(out, grad kernels.Mat) (float64, error) {
	sum, err := m.setup.SumSquares(out)
	m.ops.Gather(grad, out, layer.Rows(out.Rows), 2)
	return sum, err
}
