package lm

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// IgnoreLabel marks a position whose loss does not count.
const IgnoreLabel = -100

// Hidden is the residual stream between two blocks: the rows of all sequences, one sequence after another.
type Hidden struct {
	X    kernels.Mat // F32 [ΣLens, hidden]
	Lens []int       // tokens of each sequence
}

// Free gives the memory back.
func (h *Hidden) Free() {
	if h.X.Buf != nil {
		h.X.Buf.Free()
		h.X = kernels.Mat{}
	}
}

// ForwardOptions say what [Model.Forward] returns and what it computes the loss of.
type ForwardOptions struct {
	Logits bool // keep the logits of all positions
	Hidden bool // keep the embeddings and every block's output
	NoLoss bool
	// Labels are aligned with the ids and shifted by one for the loss: position t predicts label t+1. [IgnoreLabel]
	// does not count. Nil means the ids themselves.
	Labels [][]int32
	Hooks  *Hooks
}

// Result is what a forward pass returns.
type Result struct {
	Logits       kernels.Mat   // F32 [Σlens, vocabulary], zero unless asked for
	Hidden       []kernels.Mat // embeddings, then the output of every block before the final norm: F32 [Σlens, hidden]
	LossPerToken [][]float64   // per sequence len-1 values -log p, natural logarithm; 0 where the label is ignored
	Loss         float64       // their mean over the counted tokens; 0 if none counts
	Counted      int
}

// Forward runs the model over sequences of token ids, from position 0 each. Errors wrap [ErrVocabulary], [ErrTooLong],
// [ErrInput], [ErrNonFinite], or are the context's or the device's.
func (m *Model) Forward(ctx context.Context, ids [][]int32, o ForwardOptions) (*Result, error) {
	if o.Labels == nil {
		o.Labels = ids
	}

	if !o.NoLoss {
		if err := m.checkLabels(o.Labels, lengths(ids)); err != nil {
			return nil, err
		}
	}

	h, err := m.Embed(ids)
	if err != nil {
		return nil, err
	}
	defer h.Free()

	r := &Result{}
	if err := m.keepHidden(r, h, o.Hidden); err != nil {
		return nil, err
	}

	return r, m.within(h.Lens, o.Hooks, func(p *pass) error {
		for l := range m.blocks {
			if err := p.runBlock(ctx, l, h.X); err != nil {
				return err
			}
			if err := m.keepHidden(r, h, o.Hidden); err != nil {
				return err
			}
		}
		return p.outputs(ctx, r, h, o)
	})
}

// outputs computes logits and losses of the last hidden state.
func (p *pass) outputs(ctx context.Context, r *Result, h *Hidden, o ForwardOptions) error {
	rows, labels := layer.Predictions(h.Lens, o.Labels)
	losses := make([]float64, len(rows))
	switch {
	case o.Logits:
		if err := p.keepLogits(ctx, r, h); err != nil {
			return err
		}

		if !o.NoLoss {
			if err := p.lossOf(r.Logits, labels, losses); err != nil {
				return err
			}
		}
	case !o.NoLoss:
		if err := p.losses(ctx, h, rows, labels, losses); err != nil {
			return err
		}
	}

	if o.NoLoss {
		return nil
	}

	return p.m.summarize(r, h.Lens, labels, losses)
}

// summarize spreads the losses over the sequences and takes their mean.
func (m *Model) summarize(r *Result, lens []int, labels []int32, losses []float64) error {
	if err := m.checkLosses(lens, losses); err != nil {
		return err
	}

	// Labels that don't count have a loss of 0.
	sum := 0.0
	for i, loss := range losses {
		sum += loss
		if labels[i] >= 0 {
			r.Counted++
		}
	}

	if r.Counted > 0 {
		r.Loss = sum / float64(r.Counted)
	}

	// A view each, limited so that an append to one cannot run into the next.
	r.LossPerToken = make([][]float64, len(lens))
	at := 0
	for i, n := range lens {
		k := max(n-1, 0)
		r.LossPerToken[i] = losses[at : at+k : at+k]
		at += k
	}

	return nil
}

// Embed looks up the embeddings of sequences of token ids that start at position 0.
func (m *Model) Embed(ids [][]int32) (*Hidden, error) {
	h := &Hidden{Lens: lengths(ids)}
	rows := 0
	for i, seq := range ids {
		if err := m.checkIDs(i, seq, 0); err != nil {
			return nil, err
		}
		rows += len(seq)
	}

	if rows == 0 {
		return nil, fmt.Errorf("%w: no tokens", ErrInput)
	}

	buf, err := m.dev.Alloc(kernels.F32, rows*m.config.Hidden)
	if err != nil {
		return nil, fmt.Errorf("embeddings of %d tokens: %w", rows, err)
	}

	h.X = kernels.MatOf(buf, rows, m.config.Hidden)
	flat, starts := make([]int32, 0, rows), make([]int32, 0, rows)
	for _, seq := range ids {
		flat = append(flat, seq...)
		for t := range seq {
			starts = append(starts, int32(t))
		}
	}

	// Learnt positions and projected embeddings need a second matrix; most models have neither.
	var tmp func(rows, cols int) kernels.Mat
	if m.positions != nil || m.embedIn != nil {
		b, err := m.dev.Alloc(kernels.F32, rows*max(m.config.Hidden, m.config.EmbedDim))
		if err != nil {
			return nil, fmt.Errorf("embeddings of %d tokens: %w", rows, err)
		}
		defer b.Free()
		tmp = func(rows, cols int) kernels.Mat { return kernels.MatOf(b, rows, cols) }
	}

	return h, m.embedTo(m.setup.Norms(), h.X, tmp, flat, starts)
}

// embedTo writes the embeddings of ids at the given positions. Narrow tables and learned positions pass through
// a matrix that tmp gives.
func (m *Model) embedTo(p *layer.Pass, x kernels.Mat, tmp func(rows, cols int) kernels.Mat, ids, pos []int32) error {
	if err := m.hold(m.input); err != nil {
		return err
	}
	defer m.done(m.input)

	if m.embedIn != nil {
		t := tmp(x.Rows, m.config.EmbedDim)
		m.setup.Lookup(t, &m.embed.Weight, ids, m.config.EmbedScale)
		err := p.MatMulNT(x, t, &m.embedIn.Weight, kernels.MatMul{Precision: m.opts.Precision})
		if err != nil {
			return err
		}
	} else {
		m.setup.Lookup(x, &m.embed.Weight, ids, m.config.EmbedScale)
	}

	if m.positions == nil {
		return nil
	}

	t := tmp(x.Rows, x.Cols)
	m.ops.Gather(t, m.positions.Value, m.positionRows(pos), 1)
	m.ops.Add(x, x, t, 1)

	return nil
}

// positionRows turns positions into rows of the position table, in place.
func (m *Model) positionRows(pos []int32) []int32 {
	for i := range pos {
		pos[i] += int32(m.config.Arch.PositionOffset)
	}
	return pos
}

// RunBlock computes block l on h in place.
func (m *Model) RunBlock(ctx context.Context, l int, h *Hidden, hooks *Hooks) error {
	return m.within(h.Lens, hooks, func(p *pass) error { return p.runBlock(ctx, l, h.X) })
}

// within runs work in a pass over sequences of these lengths, which start at position 0.
func (m *Model) within(lens []int, hooks *Hooks, work func(*pass) error) error {
	s := m.borrow()
	defer m.giveBack(s)
	p, err := m.begin(s, lens, hooks)
	if err != nil {
		return err
	}
	defer p.End()
	return work(p)
}

// RunBlockTo computes block l on src and leaves the result in dst, which has the same shape and may not overlap src.
func (m *Model) RunBlockTo(ctx context.Context, l int, dst, src *Hidden, hooks *Hooks) error {
	m.ops.Convert(dst.X, src.X)
	return m.RunBlock(ctx, l, dst, hooks)
}

// PeekBlock runs block l on src for what hooks see of its inside. What only the block's output needs, such as the last
// product of a feed-forward branch, is left out, unless there is a BlockOutput. dst has the shape of src, may not
// overlap it, and ends as anything.
func (m *Model) PeekBlock(ctx context.Context, l int, dst, src *Hidden, hooks *Hooks) error {
	if hooks != nil && hooks.BlockOutput != nil {
		return m.RunBlockTo(ctx, l, dst, src, hooks)
	}

	m.ops.Convert(dst.X, src.X)
	return m.within(dst.Lens, hooks, func(p *pass) error {
		return p.with(ctx, l, func(b *block) error {
			if err := p.RunInside(b.Block, dst.X); err != nil {
				return err
			}
			return p.ops.Sync()
		})
	})
}

// CopyHidden makes a copy of h.
func (m *Model) CopyHidden(h *Hidden) (*Hidden, error) {
	buf, err := m.dev.Alloc(kernels.F32, h.X.Len())
	if err != nil {
		return nil, err
	}
	c := &Hidden{X: kernels.MatOf(buf, h.X.Rows, h.X.Cols), Lens: append([]int(nil), h.Lens...)}
	m.ops.Convert(c.X, h.X)
	return c, nil
}

// runBlock runs one block.
func (p *pass) runBlock(ctx context.Context, l int, x kernels.Mat) error {
	return p.with(ctx, l, func(b *block) error {
		if err := p.Run(b.Block, x); err != nil {
			return err
		}
		return p.left(l, x)
	})
}

// with calls f with a block whose weights are resident.
func (p *pass) with(ctx context.Context, l int, f func(b *block) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}

	b := p.m.blocks[l]
	if err := p.m.hold(b.params); err != nil {
		return err
	}
	defer p.m.done(b.params)

	p.block = b
	if err := f(b); err != nil {
		return fmt.Errorf("block %d: %w", l, err)
	}

	return nil
}

// left waits for a block's output and hands it to whoever asked.
func (p *pass) left(l int, x kernels.Mat) error {
	if err := p.ops.Sync(); err != nil {
		return err
	}
	if p.hooks != nil && p.hooks.BlockOutput != nil {
		p.hooks.BlockOutput(l, x)
	}
	return nil
}

// keepHidden copies the hidden state into the result.
func (m *Model) keepHidden(r *Result, h *Hidden, keep bool) error {
	if !keep {
		return nil
	}
	c, err := m.CopyHidden(h)
	if err == nil {
		r.Hidden = append(r.Hidden, c.X)
	}
	return err
}

// checkIDs refuses tokens outside of the vocabulary and positions that the model does not have.
func (m *Model) checkIDs(seq int, ids []int32, start int) error {
	for t, id := range ids {
		if id < 0 || int(id) >= m.config.Vocab {
			return fmt.Errorf("%w: %d at sequence %d, position %d; the model has %d tokens", ErrVocabulary, id, seq,
				start+t, m.config.Vocab)
		}
	}

	if end := start + len(ids); m.positions != nil && end > m.config.MaxPositions {
		return fmt.Errorf("%w: sequence %d has %d tokens, the model %d positions (%s)",
			ErrTooLong, seq, end, m.config.MaxPositions, m.config.Arch.Config["positions"].Key)
	}

	return nil
}

// checkLabels compares labels with the lengths of the sequences and with the vocabulary.
func (m *Model) checkLabels(labels [][]int32, lens []int) error {
	if len(labels) != len(lens) {
		return fmt.Errorf("%w: labels for %d sequences, ids for %d", ErrInput, len(labels), len(lens))
	}

	for i, seq := range labels {
		if len(seq) != lens[i] {
			return fmt.Errorf("%w: sequence %d has %d labels for %d ids", ErrInput, i, len(seq), lens[i])
		}

		for t, y := range seq {
			if y != IgnoreLabel && (y < 0 || int(y) >= m.config.Vocab) {
				return fmt.Errorf("%w: label %d at sequence %d, position %d; the model has %d tokens", ErrVocabulary, y,
					i, t, m.config.Vocab)
			}
		}
	}

	return nil
}

func lengths(ids [][]int32) []int {
	lens := make([]int, len(ids))
	for i, seq := range ids {
		lens[i] = len(seq)
	}
	return lens
}
