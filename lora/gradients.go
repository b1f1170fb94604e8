package lora

import (
	"context"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/delta"
	"github.com/modelcompress/compress/lora/internal/peft"
)

// Gradient is the gradient of one parameter of an adapter.
type Gradient struct {
	Name  string      // of the tensor in the adapter's file
	Value kernels.Mat // F32 in host memory; a vector is [1, n]
	Shape []int64     // in the file
}

// Gradients computes the loss of a model with the adapter over sequences of token ids (see [lm.BackwardOptions]
// for the labels; nil: the ids) and the gradients of the adapter's parameters. The model stays as it is.
func (a *Adapter) Gradients(ctx context.Context, m *lm.Model, ids, labels [][]int32) (*lm.Result, []Gradient, error) {
	r, err := delta.Attach(m, a.inner, delta.Options{Train: true})
	if err != nil {
		return nil, nil, err
	}
	defer r.Detach()

	result, err := r.Backward(ctx, ids, lm.BackwardOptions{Labels: labels})
	if err != nil {
		return nil, nil, err
	}

	var list []Gradient
	for _, p := range a.inner.Trainable() {
		list = append(list, Gradient{a.keyOf(p), p.Grad, a.shapeOf(p)})
		p.Grad = kernels.Mat{}
	}

	return result, list, nil
}

// shapeOf is the shape of a parameter's tensor in the adapter's file.
func (a *Adapter) shapeOf(p *adapter.Param) []int64 {
	for _, w := range a.inner.Whole {
		if w.Value == p {
			return w.Shape
		}
	}

	for _, l := range a.inner.Low {
		if p == l.Bias || p == l.Magnitude {
			return []int64{int64(p.Value.Cols)}
		}
	}

	return p.FileShape()
}

// keyOf is the name of a parameter's tensor in the adapter's file.
func (a *Adapter) keyOf(p *adapter.Param) string {
	if peft.Handles(a.inner.Config.Kind) {
		return peft.KeyOf(a.inner, p)
	}
	return p.Name
}
