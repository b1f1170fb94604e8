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

// Sequences is how many there are.
func (a *States) Sequences() int { return a.sequences }

// Each shows the batches in their order; first is the number of a batch's first sequence.
func (a *States) Each(see func(first int, h *lm.Hidden) error) error {
	first := 0
	for _, h := range a.batches {
		if err := see(first, h); err != nil {
			return err
		}
		first += len(h.Lens)
	}
	return nil
}

// Advance runs a block in place. progress is called before each batch.
func (a *States) Advance(ctx context.Context, l int, hooks *lm.Hooks, progress func(done, of int)) error {
	return a.Each(func(first int, h *lm.Hidden) error {
		progress(first, a.sequences)
		return a.m.RunBlock(ctx, l, h, hooks)
	})
}

// Peek runs a block for what the hooks see and leaves the states as they are.
func (a *States) Peek(ctx context.Context, l int, hooks *lm.Hooks, progress func(done, of int)) error {
	var scratch *kernels.Buffer
	defer func() {
		if scratch != nil {
			scratch.Free()
		}
	}()

	return a.Each(func(first int, h *lm.Hidden) error {
		progress(first, a.sequences)

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
		return a.m.PeekBlock(ctx, l, dst, h, hooks)
	})
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
