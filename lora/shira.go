package lora

import (
	"context"
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/kinds"
)

// ShiraMasks are the ways to choose which elements SHiRA trains: random (PEFT's own choice for the seed), magnitude
// |W|, wanda |W|·√Σx², gradient |G| and snip |W·G|, of which the last three are measured on the data. The formulas are
// those of package prune; features of this module do not import each other.
var ShiraMasks = kinds.Masks

// measured is the number of sequences that masks are measured on, in one pass.
const measured = 8

// place chooses the elements of a new SHiRA that depend on the data: by the first sequences of it.
func (o Options) place(ctx context.Context, m *lm.Model, a *adapter.Adapter, data corpus.Windows) error {
	mask := a.Config.SHiRA.Mask
	if a.Config.Kind != adapter.SHiRA || o.Init != nil || mask == kinds.Random || mask == kinds.Magnitude {
		return nil
	}
	if err := data.Check(m.Config().Vocab); err != nil {
		return err
	}

	n := min(measured, len(data.IDs))
	ids, labels := data.IDs[:n], data.Labels
	if labels != nil {
		labels = labels[:n]
	}

	base, err := kinds.Of(m)
	if err != nil {
		return err
	}
	at := map[string]*adapter.Low{}
	for _, l := range a.Low {
		at[l.Module.Tensor] = l
	}
	if mask == kinds.Wanda {
		return o.placeByInputs(ctx, m, base, at, ids)
	}

	_, err = m.Backward(ctx, ids, lm.BackwardOptions{
		Labels: labels, Keep: o.keep(m), Want: func(tensor string) bool { return at[tensor] != nil },
		Hooks: &lm.Hooks{WeightGrad: func(tensor string, g kernels.Mat) error {
			l := at[tensor]
			if l == nil {
				return nil
			}
			h, err := hostOf(m, g)
			if err != nil {
				return err
			}

			w := kernels.Mat{}
			if mask == kinds.SNIP {
				if w, err = base.Values(tensor); err != nil {
					return err
				}
			}
			return placed(l, func(o, i int) float32 {
				g := h.RowF32(o)[i]
				if mask == kinds.SNIP {
					g *= w.RowF32(o)[i]
				}
				return g
			})
		}},
	})
	return err
}

// placeByInputs chooses by |W|·√Σx². Matrices that no token has reached, of experts or outside of the blocks, go by
// |W|.
func (o Options) placeByInputs(ctx context.Context, m *lm.Model, base kinds.Base, at map[string]*adapter.Low,
	ids [][]int32,
) error {
	squares := map[string][]float64{}
	var failed error
	_, err := m.Forward(ctx, ids, lm.ForwardOptions{NoLoss: true, Hooks: &lm.Hooks{
		LinearInput: func(l lm.Linear, x kernels.Mat) {
			if at[l.Name] == nil || failed != nil {
				return
			}
			h, err := hostOf(m, x)
			if err != nil {
				failed = err
				return
			}
			sums := make([]float64, h.Cols)
			for t := range h.Rows {
				for i, v := range h.RowF32(t) {
					sums[i] += float64(v) * float64(v)
				}
			}
			squares[l.Name] = sums
		},
	}})
	if err != nil {
		return err
	}
	if failed != nil {
		return failed
	}

	unseen := 0
	for tensor, l := range at {
		w, err := base.Values(tensor)
		if err != nil {
			return err
		}

		norms := make([]float32, l.Module.In)
		sums := squares[tensor]
		if sums == nil {
			unseen++
		}
		for i := range norms {
			norms[i] = 1
			if sums != nil {
				norms[i] = float32(math.Sqrt(sums[i]))
			}
		}
		if err := placed(l, func(o, i int) float32 { return w.RowF32(o)[i] * norms[i] }); err != nil {
			return err
		}
	}

	if unseen > 0 && o.Remark != nil {
		o.Remark(fmt.Sprintf("shira mask wanda: no inputs of %d matrices were measured, so they go by |W|", unseen))
	}
	return nil
}

func placed(l *adapter.Low, score func(out, in int) float32) error {
	if err := kinds.Best(l.Factors.(adapter.Sparse), score); err != nil {
		return fmt.Errorf("%s: %w", l.Module.Path, err)
	}
	return nil
}

// hostOf gives the numbers of an F32 matrix of the model's device in host memory: itself on the host.
func hostOf(m *lm.Model, x kernels.Mat) (kernels.Mat, error) {
	dev := m.Device()
	if dev.Info().Host {
		return x, nil
	}

	h := kernels.MatOf(kernels.NewHost(kernels.F32, x.Rows*x.Cols), x.Rows, x.Cols)
	for i := range x.Rows {
		if err := dev.Download(h.Buf.Bytes()[4*i*x.Cols:4*(i+1)*x.Cols], x.Buf, x.Off+i*x.Stride); err != nil {
			return kernels.Mat{}, err
		}
	}
	return h, nil
}
