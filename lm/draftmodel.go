package lm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
)

// ModelDraft is a [Draft] by a smaller model with the same tokens, such as a copy of the model with fewer decoder
// layers or in fewer bits. Close ends it; it is used by one generation at a time.
type ModelDraft struct {
	of    *Model
	s     *Session
	pick  sampler
	cost  float64
	vocab int // of the model that it drafts for
}

// NewDraft makes a draft for the model of another one, which stays open as long. The error wraps [ErrInput] if its
// tokens are others.
func (m *Model) NewDraft(of *Model) (*ModelDraft, error) {
	if err := m.sameTokens(of); err != nil {
		return nil, err
	}

	s, err := of.NewSession(SessionOptions{KeepAll: true})
	if err != nil {
		return nil, err
	}
	// Generation reads all weights for a token, and does little else.
	return &ModelDraft{
		of: of, s: s, cost: float64(of.DataSize()) / float64(m.DataSize()), vocab: m.config.Vocab,
	}, nil
}

// sameTokens checks that an id means the same in another model. Tables may have rows that no token uses.
func (m *Model) sameTokens(of *Model) error {
	a, errA := m.Tokenizer()
	b, errB := of.Tokenizer()
	switch {
	case errors.Is(errA, fs.ErrNotExist) && errors.Is(errB, fs.ErrNotExist):
		if m.config.Vocab != of.config.Vocab {
			return fmt.Errorf("%w: %s cannot draft for %s: it has %d tokens, not %d", ErrInput, of.dir, m.dir,
				of.config.Vocab, m.config.Vocab)
		}
		return nil
	case errA != nil:
		return errA
	case errB != nil:
		return errB
	}

	if d := a.Difference(b); d != "" {
		return fmt.Errorf("%w: %s cannot draft for %s, because its tokens are others: %s", ErrInput, of.dir, m.dir, d)
	}
	return nil
}

// Close gives the memory of keys and values back.
func (d *ModelDraft) Close() { d.s.Close() }

// Cost implements [Draft]: the bytes of the one model by those of the other.
func (d *ModelDraft) Cost() float64 { return d.cost }

// Propose implements [Draft].
func (d *ModelDraft) Propose(ctx context.Context, ids []int32, n int, s *Sampler) (Proposal, error) {
	if d.of.positions != nil {
		n = min(n, d.of.config.MaxPositions-len(ids)+1)
	}
	if n < 1 {
		return Proposal{}, nil
	}

	// A sampler of its own, since what is proposed is not yet a part of the text.
	d.pick.penalty, d.pick.temperature, d.pick.seed = s.s.penalty, s.s.temperature, s.s.seed
	d.pick.topK, d.pick.topP, d.pick.minP = s.s.topK, s.s.topP, s.s.minP
	d.pick.seen = maps.Clone(s.s.seen)

	p := Proposal{}
	next := ids[d.s.Keep(ids):]
	for range n {
		logits, err := d.s.Append(ctx, next)
		if err != nil {
			return Proposal{}, err
		}

		// The generation sees its last token only with its logits.
		d.pick.see(next)
		id, ok := d.pick.shape(logits[:min(len(logits), d.vocab)])
		if !ok {
			break
		}
		if d.pick.temperature > 0 {
			p.from = append(p.from, slices.Clone(d.pick.order))
			id = draw(d.pick.order, rng.New(d.pick.seed, "draft").Float(uint64(d.s.Len())))
		}
		p.IDs = append(p.IDs, id)
		next = p.IDs[len(p.IDs)-1:]
	}
	return p, nil
}
