package lm

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/lm/internal/layer"
)

// Tail is the last tokens of sequences, run again and again from one block up: what the tokens before them and
// the blocks below compute is kept, and the model must not change there.
type Tail struct{ inner *layer.Tail }

// Part is the sequences lo … hi-1 of a tail, whose memory it uses: Free of the whole ends it too.
func (t *Tail) Part(lo, hi int) *Tail { return &Tail{t.inner.Part(lo, hi)} }

// Free gives the memory back.
func (t *Tail) Free() { t.inner.Free() }

// NewTail prepares passes over the tokens ids[i][from[i]:] of sequences that start at position 0, from block
// first on ([Model.Blocks]: the head alone). Free gives the memory back.
func (m *Model) NewTail(ctx context.Context, ids [][]int32, from []int, first int) (*Tail, error) {
	if i := layer.Outside(lengths(ids), from); i >= 0 {
		return nil, fmt.Errorf("%w: sequence %d of %d tokens has none from %d on", ErrInput, i, len(ids[i]), from[i])
	}

	h, err := m.Embed(ids)
	if err != nil {
		return nil, err
	}
	defer h.Free()

	t, err := m.setup.NewTail(h.Lens, from, first)
	if err != nil {
		return nil, err
	}

	if err := m.fill(ctx, t, h); err != nil {
		t.Free()
		return nil, err
	}

	t.Filled(from)
	return &Tail{t}, nil
}

// fill runs whole sequences for a tail.
func (m *Model) fill(ctx context.Context, t *layer.Tail, h *Hidden) error {
	s := m.borrow()
	defer m.giveBack(s)

	p, err := m.beginAfter(s, h.Lens, nil, t.Before())
	if err != nil {
		return err
	}
	defer p.End()

	for l := range m.blocks {
		t.Enter(l, h.X)
		if err := p.runBlock(ctx, l, h.X); err != nil {
			return err
		}
	}

	t.Enter(len(m.blocks), h.X)
	return m.ops.Sync()
}

// BackwardTails is [Model.Backward] of the last tokens of all sequences of some tails that begin at the same
// block: labels, rows and hidden states are those of these tokens. There are no gradients of parameters, nor of
// hidden states below the block.
func (m *Model) BackwardTails(ctx context.Context, tails []*Tail, o BackwardOptions) (*Result, error) {
	inner := make([]*layer.Tail, len(tails))
	for i, t := range tails {
		inner[i] = t.inner
	}

	x, lens, past, err := m.setup.Join(inner)
	if err != nil {
		return nil, err
	}

	h := &Hidden{X: x, Lens: lens}
	defer h.Free()

	if err := m.checkLabels(o.Labels, lens); err != nil {
		return nil, err
	}

	o.Want = func(string) bool { return false }
	b, err := m.beginBackward(lens, o, past)
	if err != nil {
		return nil, err
	}
	defer b.end()

	// Blocks below the tails are not there: what they compute was kept.
	b.plan(nil)
	b.first = tails[0].inner.First()
	clear(b.needs[:b.first])
	clear(b.trains[:b.first])

	return b.all(ctx, h)
}
