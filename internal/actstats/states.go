package actstats

import (
	"context"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// States are the hidden states of all calibration sequences between two blocks, in batches that run at a time.
type States struct {
	m         *lm.Model
	batches   []*lm.Hidden
	sequences int
}

// NewStates embeds the sequences, in batches of about batchTokens tokens.
func NewStates(ctx context.Context, m *lm.Model, ids [][]int32, batchTokens int) (*States, error) {
	a := &States{m: m, sequences: len(ids)}
	for lo := 0; lo < len(ids); {
		hi, tokens := lo, 0
		for hi < len(ids) && (hi == lo || tokens+len(ids[hi]) <= batchTokens) {
			tokens += len(ids[hi])
			hi++
		}

		h, err := m.Embed(ids[lo:hi])
		if err == nil {
			a.batches = append(a.batches, h)
			err = ctx.Err()
		}
		if err != nil {
			a.Free()
			return nil, err
		}

		lo = hi
	}

	return a, nil
}

// Advance runs a block in place. progress is called before each batch.
func (a *States) Advance(ctx context.Context, l int, hooks *lm.Hooks, progress func(done, of int)) error {
	done := 0
	for _, h := range a.batches {
		progress(done, a.sequences)
		if err := a.m.RunBlock(ctx, l, h, hooks); err != nil {
			return err
		}
		done += len(h.Lens)
	}
	return nil
}

// Peek runs a block for what the hooks see and leaves the states as they are.
func (a *States) Peek(ctx context.Context, l int, hooks *lm.Hooks, progress func(done, of int)) error {
	var scratch *kernels.Buffer
	defer func() {
		if scratch != nil {
			scratch.Free()
		}
	}()

	done := 0
	for _, h := range a.batches {
		progress(done, a.sequences)

		if scratch == nil || scratch.Len < h.X.Len() {
			if scratch != nil {
				scratch.Free()
			}

			var err error
			if scratch, err = a.m.Device().Alloc(kernels.F32, h.X.Len()); err != nil {
				return err
			}
		}

		dst := &lm.Hidden{X: kernels.MatOf(scratch, h.X.Rows, h.X.Cols), Lens: h.Lens}
		if err := a.m.RunBlockTo(ctx, l, dst, h, hooks); err != nil {
			return err
		}

		done += len(h.Lens)
	}

	return nil
}

// Free gives the states back; a nil receiver has none.
func (a *States) Free() {
	if a == nil {
		return
	}
	for _, h := range a.batches {
		h.Free()
	}
}
