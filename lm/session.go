package lm

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// SessionOptions of [Model.NewSession].
type SessionOptions struct {
	// KeepAll keeps keys that have left every sliding window, so that [Session.Truncate] reaches any length.
	KeepAll bool
}

// Session is one sequence with its keys and values, so that new tokens cost only themselves. It is used by one
// goroutine at a time.
type Session struct {
	m       *Model
	opts    SessionOptions
	layers  []layer.KV
	ids     []int32 // the tokens
	scratch *scratch
	hidden  *kernels.Buffer // the residual stream of the latest tokens
	logits  *kernels.Buffer
	host    []float32 // logits on devices that are not host memory
	lens    [1]int
	past    [1]layer.Past
	row     [1]int32
}

// prefillChunk is how many tokens of a prompt run at a time.
const prefillChunk = 512

// NewSession starts an empty sequence. Memory for keys and values grows with it.
func (m *Model) NewSession(o SessionOptions) (*Session, error) {
	s := &Session{m: m, opts: o, layers: make([]layer.KV, len(m.blocks)), scratch: m.borrow()}
	if m.opts.KVPositions > 0 {
		for l := range s.layers {
			m.setup.Watch(&s.layers[l])
		}
	}
	return s, m.grow(&s.logits, kernels.F32, m.config.Vocab)
}

// Len is the number of tokens so far.
func (s *Session) Len() int { return len(s.ids) }

// Append runs more tokens and gives the logits of the last one, [vocabulary], valid until the next call. After
// an error the session has the length it had, or is empty where keys that it would need have left a sliding
// window.
func (s *Session) Append(ctx context.Context, ids []int32) ([]float32, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: no tokens", ErrInput)
	}
	if err := s.m.checkIDs(0, ids, s.Len()); err != nil {
		return nil, err
	}

	// In chunks, so that the activations of a long prompt take no more memory than those of a short one. Where rotary
	// frequencies depend on the length, all chunks must know the whole of it.
	before, total := s.Len(), s.Len()+len(ids)
	var last kernels.Mat
	for len(ids) > 0 {
		n := min(len(ids), s.chunk())
		x, err := s.run(ctx, ids[:n], total)
		if err != nil {
			s.restore(before)
			return nil, err
		}
		last, ids = x, ids[n:]
	}

	return s.head(last)
}

// chunk is how many tokens of a prompt run at a time.
func (s *Session) chunk() int {
	if n := s.m.opts.KVPositions; n > 0 {
		return min(max(n/4, 1), prefillChunk)
	}
	return prefillChunk
}

// run computes the blocks for a few tokens of a sequence that will have total tokens.
func (s *Session) run(ctx context.Context, ids []int32, total int) (kernels.Mat, error) {
	if err := s.m.grow(&s.hidden, kernels.F32, len(ids)*s.m.config.Hidden); err != nil {
		return kernels.Mat{}, err
	}

	x := kernels.MatOf(s.hidden, len(ids), s.m.config.Hidden)
	s.lens[0], s.past[0] = len(ids), layer.Past{
		KV: s.layers, Start: s.Len(), Total: total, Weigh: s.m.opts.KVPositions > 0,
	}
	room := func(l int) error { return s.room(l, len(ids)) }
	if err := s.m.extend(ctx, s.scratch, x, s.lens[:], ids, s.past[:], room); err != nil {
		return kernels.Mat{}, err
	}

	s.grown(ids)
	return x, nil
}

// grown takes tokens in whose keys and values have been written.
func (s *Session) grown(ids []int32) {
	for l := range s.layers {
		s.layers[l].Rows += len(ids)
	}
	s.ids = append(s.ids, ids...)
	if n := s.m.opts.KVPositions; n > 0 {
		for l := range s.layers {
			s.m.setup.Evict(&s.layers[l], n)
		}
	}
}

// room makes space for n more tokens in a block's cache.
func (s *Session) room(l, n int) error {
	w := s.m.config.Windows[l]
	if s.opts.KeepAll {
		w = 0
	}
	return s.m.setup.Room(&s.layers[l], n, w)
}

// head computes the logits of the last row of x.
func (s *Session) head(x kernels.Mat) ([]float32, error) {
	m := s.m
	p := m.outside(s.scratch, nil)
	if err := p.reserveHead(1); err != nil {
		return nil, err
	}
	if err := m.hold(m.output); err != nil {
		return nil, err
	}
	defer m.done(m.output)

	out := kernels.MatOf(s.logits, 1, m.config.Vocab)
	// Of a prompt only the last row has a use: the head over all rows would often cost more than a block.
	s.row[0] = int32(x.Rows - 1)
	if err := p.headRows(out, x, s.row[:]); err != nil {
		return nil, err
	}
	if err := m.ops.Sync(); err != nil {
		return nil, err
	}
	if m.host {
		return out.RowF32(0), nil
	}
	if s.host == nil {
		s.host = make([]float32, m.config.Vocab)
	}

	return s.host, m.dev.Download(kernels.WrapF32(s.host).Bytes(), s.logits, 0)
}

// Truncate shortens the sequence to its first n tokens. It fails with [ErrInput] where keys that are needed
// again have left a sliding window ([SessionOptions].KeepAll prevents that), or n is longer than the sequence.
func (s *Session) Truncate(n int) error {
	if n < 0 || n > s.Len() {
		return fmt.Errorf("%w: truncation of %d tokens to %d", ErrInput, s.Len(), n)
	}

	if s.m.opts.KVPositions > 0 && n != s.Len() && n > 0 {
		return fmt.Errorf("%w: truncation to %d tokens of a session that keeps %d positions", ErrInput, n,
			s.m.opts.KVPositions)
	}
	if n == 0 {
		s.empty()
		return nil
	}

	drop := s.Len() - n
	for l := range s.layers {
		have, need := s.layers[l].Rows-drop, n
		if w := s.m.config.Windows[l]; w > 0 {
			need = min(n, w-1)
		}

		if have < need {
			return fmt.Errorf("%w: truncation to %d tokens needs keys of block %d that have left its window of %d",
				ErrInput, n, l, s.m.config.Windows[l])
		}
	}

	s.rewind(n)
	return nil
}

// restore goes back to n tokens after a failure, or to none if that is not possible.
func (s *Session) restore(n int) {
	if s.Truncate(n) == nil {
		return
	}
	s.empty()
}

// empty forgets all tokens.
func (s *Session) empty() {
	for l := range s.layers {
		s.layers[l].Empty()
	}
	s.ids = s.ids[:0]
}

// Keep cuts the sequence off where it differs from ids, and returns how many of them it has then: at most all but the
// last one, since [Session.Append] needs a token to give logits. What it would have to keep is not always good: where
// keys have left a sliding window, or rotary frequencies depend on the length of the whole (see [arch.Rope]), the
// sequence is empty afterwards.
func (s *Session) Keep(ids []int32) int {
	n := 0
	for n < min(len(s.ids), len(ids)-1) && s.ids[n] == ids[n] {
		n++
	}

	if r := s.m.config.Rope; r != nil && !r.Static() {
		n = 0
	}
	s.restore(n)
	return s.Len()
}

// rewind forgets the tokens from n on.
func (s *Session) rewind(n int) {
	for l := range s.layers {
		s.layers[l].Rows -= s.Len() - n
	}
	s.ids = s.ids[:n]
}

// Close gives the memory back.
func (s *Session) Close() {
	for l := range s.layers {
		s.layers[l].Free()
	}

	if s.scratch != nil {
		s.m.giveBack(s.scratch)
		s.logits.Free()
		if s.hidden != nil {
			s.hidden.Free()
		}
	}

	s.scratch = nil
}

// KVBytes is the memory that keys and values take, with what is reserved for more of them.
func (s *Session) KVBytes() int64 {
	n := int64(0)
	for l := range s.layers {
		n += s.layers[l].Size()
	}
	return n
}
