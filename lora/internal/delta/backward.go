package delta

import (
	"context"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// Backward runs the model forward and backward and adds the gradients of the adapter's parameters to what they
// have. Hooks of the options are replaced: no gradient of the base is computed that the adapter does not need.
func (r *Runtime) Backward(ctx context.Context, ids [][]int32, o lm.BackwardOptions) (*lm.Result, error) {
	o.Hooks, o.Want = &lm.Hooks{}, r.Wants
	if len(r.copies) > 0 {
		o.Hooks.WeightGrad = r.Learn
	}
	return r.m.Backward(ctx, ids, o)
}

var _ lm.Delta = linears{}

// linears is the runtime as the model sees it.
type linears struct{ *Runtime }

// Backward implements [lm.Delta].
func (l linears) Backward(lin lm.Linear, x, dy, dx kernels.Mat) error {
	return l.backward(lin, x, dy, dx)
}
