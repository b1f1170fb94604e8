package lm

import (
	"context"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// Branch is a run of tokens that continues a session's sequence, or another branch.
type Branch struct {
	Parent int // an earlier branch by its place in the list; -1: the session's sequence itself
	IDs    []int32
}

// Branches runs continuations of the sequence, and continuations of these, in one pass: what they have in
// common is computed once. A branch's parent must be the branch before it in the list, or one of that one's
// ancestors. The result has the rows of all branches, one branch after another; the session stays as it is.
// Where rotary frequencies depend on the length of a sequence (see arch.Rope), each branch counts as the end of
// its own.
func (s *Session) Branches(ctx context.Context, list []Branch) (*Hidden, error) {
	h := &Hidden{Lens: make([]int, len(list))}
	ids, parents := []int32(nil), make([]int, len(list))
	for i, b := range list {
		h.Lens[i], parents[i], ids = len(b.IDs), b.Parent, append(ids, b.IDs...)
	}

	past, deepest, bad := layer.Branches(s.layers, s.Len(), h.Lens, parents)
	if bad >= 0 {
		return nil, fmt.Errorf("%w: branch %d does not follow its parent %d", ErrInput, bad, parents[bad])
	}

	for i, b := range list {
		if err := s.m.checkIDs(i, b.IDs, past[i].Start); err != nil {
			return nil, err
		}
	}

	return h, s.m.into(ctx, s.scratch, h, ids, past, func(l int) error { return s.room(l, deepest) })
}

// Step appends tokens to several sessions of a model in one pass: ids[i] to sessions[i]. The result has the
// rows of all new tokens, one session after another. No session may be there twice. After an error the sessions
// have the lengths they had.
func (m *Model) Step(ctx context.Context, sessions []*Session, ids [][]int32) (*Hidden, error) {
	h := &Hidden{Lens: lengths(ids)}
	if len(sessions) == 0 || len(sessions) != len(ids) {
		return nil, fmt.Errorf("%w: %d runs of tokens for %d sessions", ErrInput, len(ids), len(sessions))
	}

	past, flat := make([]layer.Past, len(ids)), []int32(nil)
	for i, s := range sessions {
		if err := m.checkIDs(i, ids[i], s.Len()); err != nil {
			return nil, err
		}
		past[i], flat = layer.Past{
			KV: s.layers, Start: s.Len(), Weigh: m.opts.KVPositions > 0,
		}, append(flat, ids[i]...)
	}

	err := m.into(ctx, sessions[0].scratch, h, flat, past, func(l int) error {
		for i, s := range sessions {
			if err := s.room(l, len(ids[i])); err != nil {
				return err
			}
		}
		return nil
	})

	// Lengths grow only when all blocks are done: until then keys and values beyond them do not count.
	for i, s := range sessions {
		if err == nil {
			s.grown(ids[i])
		}
	}

	return h, err
}

// Clone makes a session of its own with the same sequence and room for n more tokens.
func (s *Session) Clone(n int) (*Session, error) {
	c, err := s.m.NewSession(s.opts)
	if err != nil {
		return nil, err
	}

	for l := range s.layers {
		kv := &s.layers[l]
		if c.layers[l], err = s.m.setup.CopyKV(kv, 0, kv.Rows, kv.Rows+max(n, 1)); err != nil {
			c.Close()
			return nil, err
		}
	}

	c.ids = slices.Clone(s.ids)
	return c, nil
}

// into runs new tokens of several sequences into a new hidden state.
func (m *Model) into(ctx context.Context, sc *scratch, h *Hidden, ids []int32, past []layer.Past,
	room func(l int) error,
) error {
	if len(ids) == 0 {
		return fmt.Errorf("%w: no tokens", ErrInput)
	}

	buf, err := m.dev.Alloc(kernels.F32, len(ids)*m.config.Hidden)
	if err != nil {
		return fmt.Errorf("embeddings of %d tokens: %w", len(ids), err)
	}

	h.X = kernels.MatOf(buf, len(ids), m.config.Hidden)
	if err := m.extend(ctx, sc, h.X, h.Lens, ids, past, room); err != nil {
		h.Free()
		return err
	}

	return nil
}

// extend computes x for new tokens of sequences that have a past. Before each block, room makes space for its
// keys and values.
func (m *Model) extend(ctx context.Context, sc *scratch, x kernels.Mat, lens []int, ids []int32, past []layer.Past,
	room func(l int) error,
) error {
	p, err := m.beginAfter(sc, lens, nil, past)
	if err != nil {
		return err
	}
	defer p.End()

	return p.extend(ctx, x, ids, room)
}

// extend is [Model.extend] for a pass that has begun.
func (p *pass) extend(ctx context.Context, x kernels.Mat, ids []int32, room func(l int) error) error {
	m, sc, past := p.m, p.scratch, p.Past
	sc.steps = sc.steps[:0]
	for i, n := range p.lens {
		for t := range n {
			sc.steps = append(sc.steps, int32(past[i].Start+t))
		}
	}

	if err := m.embedTo(p.Pass, x, p.Spare, ids, sc.steps); err != nil {
		return err
	}

	// Room is made block by block, as each may keep another window.
	for l := range m.blocks {
		if err := room(l); err != nil {
			return err
		}
		if err := p.runBlock(ctx, l, x); err != nil {
			return err
		}
	}

	return nil
}

// Score measures how well the model predicts: for each of some rows of the last hidden state -log p, natural logarithm,
// of each of the tokens that are wanted there, and the most likely token, of equal ones the lowest; -1 where
// the largest logit is not a finite number. The logits are computed for some rows at a time.
func (m *Model) Score(ctx context.Context, h *Hidden, rows []int32,
	want [][]int32,
) (losses [][]float64, best []int32, err error) {
	if len(rows) != len(want) {
		return nil, nil, fmt.Errorf("%w: %d rows, tokens for %d", ErrInput, len(rows), len(want))
	}

	for i, tokens := range want {
		if err := m.checkIDs(i, tokens, 0); err != nil {
			return nil, nil, err
		}
	}

	s := m.borrow()
	defer m.giveBack(s)

	p, size := m.outside(s, nil), m.chunk(len(rows))
	if err := m.grow(&s.head[headLogits], kernels.F32, size*m.config.Vocab); err != nil {
		return nil, nil, fmt.Errorf("logits of %d tokens: %w", size, err)
	}

	losses, best = make([][]float64, len(rows)), make([]int32, len(rows))
	err = p.headChunks(ctx, h.X, rows,
		func(lo, hi int) kernels.Mat { return kernels.MatOf(s.head[headLogits], hi-lo, m.config.Vocab) },
		func(lo, hi int, logits kernels.Mat) error {
			// The label doesn't matter: what is wanted of the loss is the logarithm of the sum, which all tokens
			// share.
			first, err := p.crossEntropy(logits, make([]int32, hi-lo))
			if err != nil {
				return err
			}
			return p.Judge(logits, first, want[lo:hi], losses[lo:hi], best[lo:hi])
		})

	return losses, best, err
}
