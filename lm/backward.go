package lm

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// BackwardOptions say what [Model.Backward] differentiates, and with respect to what.
type BackwardOptions struct {
	// Labels are those of [ForwardOptions].
	Labels [][]int32
	// Hooks get the gradients: [Hooks].WeightGrad those of parameters, HiddenGrad those of hidden states; nil
	// ones ask for nothing. LinearInput, Expert and BlockOutput are called once, in the forward pass. Attached deltas
	// get theirs by [Delta].Backward.
	Hooks *Hooks
	// Want chooses the parameters whose gradients are computed, by tensor name; nil: all.
	Want func(name string) bool
	// WantHidden chooses the hidden states whose gradients are computed: 0 is the embeddings, i what leaves
	// block i-1, as in [Result].Hidden; nil: all. Nothing is computed below the lowest thing that is wanted.
	WantHidden func(state int) bool
	// From is the first position whose gradients are computed, in a single sequence and with no parameters
	// asked for: those of earlier ones are zeros, and what cannot reach it is left out, but for mixtures.
	From int
	// Edit may change a hidden state [Σlens, hidden] in the forward pass, before anything else sees it; nil:
	// nobody does. What it adds has the gradient that HiddenGrad gets for the state.
	Edit func(state int, x kernels.Mat) error
	// Denominator divides the sum of the losses. 0: the number of labels that count, which makes the loss their mean;
	// for batches of one step, their number in all batches.
	Denominator float64
	// Objective replaces the cross-entropy: it gets the logits [n, vocabulary] of some of the rows that predict
	// something and their labels, writes the rows' losses, and replaces the logits by the gradients of the
	// total. Denominator does not apply. nil: the cross-entropy.
	Objective func(logits kernels.Mat, labels []int32, losses []float64) error
	// Room may give memory for the gradient of a token table, which is the largest of all: F32, of the table's shape,
	// on the model's device. What is in it is lost, and WeightGrad gets it. nil, or none: the pass takes some of its
	// own.
	Room func(name string) kernels.Mat
	// Keep is how many bytes may be spent on keeping what blocks compute on the way. A block that finds no room
	// is computed again before its backward pass; the gradients are the same to the last bit. The last block is
	// always kept. The memory stays with the model for its next backward pass.
	Keep int64
}

// Backward runs the model over sequences of token ids and computes the gradients of the loss (by default the
// mean of -log p over all labels that count, natural logarithm) with respect to what is asked for. Memory holds
// the inputs of the blocks, what one block computes on the way, and one block's gradients: a parameter's
// gradient is delivered when its block is done, those of the head first, block by block from the last to the
// first, then those of the embeddings; a tied table has one gradient, which comes last. The result has no
// logits and no hidden states. Errors are those of [Model.Forward] and of the hooks.
func (m *Model) Backward(ctx context.Context, ids [][]int32, o BackwardOptions) (*Result, error) {
	if o.Labels == nil {
		o.Labels = ids
	}
	if o.Hooks != nil && o.Hooks.Route != nil {
		return nil, fmt.Errorf("%w: tokens are sent elsewhere in forward passes only", ErrInput)
	}
	if n := o.Denominator; n < 0 || math.IsNaN(n) || math.IsInf(n, 0) {
		return nil, fmt.Errorf("%w: denominator %g is not a positive number", ErrInput, n)
	}
	if err := m.checkLabels(o.Labels, lengths(ids)); err != nil {
		return nil, err
	}

	h, err := m.Embed(ids)
	if err != nil {
		return nil, err
	}
	defer h.Free()

	b, err := m.beginBackward(h.Lens, o, nil)
	if err != nil {
		return nil, err
	}
	defer b.end()

	b.plan(ids)
	if err := b.cut(ids); err != nil {
		return nil, err
	}

	return b.all(ctx, h)
}

// all runs the blocks on h, the head, and everything back.
func (b *backward) all(ctx context.Context, h *Hidden) (*Result, error) {
	if err := b.forward(ctx, h.X); err != nil {
		return nil, err
	}
	r, err := b.head(ctx, h)
	if err != nil {
		return nil, err
	}
	return r, b.down(ctx)
}

// The backward pass is reverse-mode differentiation of the model with the memory of one block.
//
// Forward, the blocks run as ever; of each, only what enters it (tokens × hidden) is kept. The head computes logits,
// losses and the gradient d of the last hidden state, some rows at a time, so that the logits of all tokens
// (tokens × vocabulary) never exist. Then d goes down block by block: a block is run again from its input with
// everything kept that its gradients need (Replay; "activation checkpointing", Chen et al., "Training Deep Nets with
// Sublinear Memory Cost", 2016), d is taken through it in place, and the gradients of its parameters are delivered and
// forgotten before the block below begins. Embeddings come last, and with them a tied table, whose gradient is the sum
// of the head's and of the embeddings'.
//
// Replaying costs one more forward pass, so blocks are recorded in the first place where memory is given for it
// (BackwardOptions.Keep): the last ones, the very last always, because its tape would be replayed at once. A replay
// repeats the same operations in the same order, so that gradients don't depend on Keep.
//
// plan decides beforehand how far down d is needed at all, and nothing below the lowest thing that somebody asked for
// is computed. Weights may be on disk: b.with holds those of a block while it runs, so that with a model larger than
// memory each block is read twice, once on the way up and once on the way down.

// backward is one backward pass.
type backward struct {
	*pass
	o     BackwardOptions
	ids   []int32 // of all rows
	first int     // block

	needs  []bool        // hidden states whose gradients are needed, here or for what is below
	trains []bool        // blocks in which something is wanted
	inputs []kernels.Mat // of the blocks that are replayed, each freed once the gradient is through
	tapes  []*layer.Tape // of the blocks that are recorded
	d      kernels.Mat   // gradient of the hidden state where the pass is
	table  kernels.Mat   // gradient of the token table
	grads  *kernels.Buffer
	taken  []*kernels.Buffer // freed at the end of the pass
}

func (m *Model) beginBackward(lens []int, o BackwardOptions, past []layer.Past) (*backward, error) {
	if m.opts.KVBits != 0 {
		return nil, fmt.Errorf("%w: there are no gradients through keys and values in %d bits", ErrInput, m.opts.KVBits)
	}
	if o.Hooks == nil {
		o.Hooks = &Hooks{}
	}

	s := m.borrow()
	p, err := m.beginAfter(s, lens, o.Hooks, past)
	if err != nil {
		m.giveBack(s)
		return nil, err
	}

	n := len(m.blocks)
	for len(s.kept) < n {
		s.kept = append(s.kept, &layer.Tape{})
	}

	return &backward{
		pass: p, o: o, needs: make([]bool, n+1), trains: make([]bool, n), inputs: make([]kernels.Mat, n),
		tapes: make([]*layer.Tape, n),
	}, nil
}

func (b *backward) end() {
	b.End()

	for l, t := range b.scratch.kept {
		if b.tapes[l] != t { // the next pass is likely to want no more
			t.Free()
		}
	}

	for l := range b.inputs { // a pass that has failed leaves some
		b.release(l)
	}

	for _, buf := range append(b.taken, b.grads) {
		if buf != nil {
			buf.Free()
		}
	}

	b.m.giveBack(b.scratch)
}

// plan finds out how far down gradients are needed.
func (b *backward) plan(ids [][]int32) {
	for _, seq := range ids {
		b.ids = append(b.ids, seq...)
	}

	// A hidden state's gradient is needed if anything at or below it is wanted: once true, true for all above.
	need := b.wantsHidden(0) || b.wantsAny(b.m.input)
	b.needs[0] = need
	for l, block := range b.m.blocks {
		b.trains[l] = b.wantsAny(block.params) || block.Trains()
		need = need || b.trains[l] || b.wantsHidden(l+1)
		b.needs[l+1] = need
	}
}

// cut leaves out the positions that the options name.
func (b *backward) cut(ids [][]int32) error {
	b.From = b.o.From
	if n := b.From; n != 0 && (n < 0 || len(ids) != 1 || n >= len(ids[0]) || slices.Contains(b.trains, true) ||
		b.wantsAny(b.m.input) || b.wantsAny(b.m.output)) {
		return fmt.Errorf("%w: gradients from position %d on need one longer sequence, and none of parameters",
			ErrInput, n)
	}
	return nil
}

func (b *backward) wants(p *param) bool {
	return p != nil && b.hooks.WeightGrad != nil && (b.o.Want == nil || b.o.Want(p.Name))
}

func (b *backward) wantsAny(g group) bool { return slices.ContainsFunc(g, b.wants) }

func (b *backward) wantsHidden(state int) bool {
	return b.hooks.HiddenGrad != nil && (b.o.WantHidden == nil || b.o.WantHidden(state))
}

// forward runs the blocks on x in place and keeps what the backward pass needs.
func (b *backward) forward(ctx context.Context, x kernels.Mat) error {
	b.choose(x.Rows)
	if err := b.edit(b.first, x); err != nil {
		return err
	}

	for l := b.first; l < len(b.m.blocks); l++ {
		if err := b.with(ctx, l, func(block *block) error { return b.step(block, x) }); err != nil {
			return err
		}
		if err := b.edit(l+1, x); err != nil {
			return err
		}
	}

	return nil
}

// choose picks the blocks to record: the last one, and before it as many as there is room for.
func (b *backward) choose(rows int) {
	for room, l := b.o.Keep, len(b.m.blocks)-1; l >= 0 && (b.needs[l] || b.trains[l]); l-- {
		if l == len(b.m.blocks)-1 {
			b.tapes[l] = &b.scratch.tape
			continue
		}

		// From the top down without gaps: the tape of a block far up is used up soonest.
		if room -= b.m.setup.TapeBytes(b.m.blocks[l].Block, rows); room < 0 {
			return
		}

		b.tapes[l] = b.scratch.kept[l]
	}
}

// step runs one block.
func (b *backward) step(block *block, x kernels.Mat) error {
	l := block.Index
	var err error
	switch {
	case b.tapes[l] != nil:
		err = b.Record(block.Block, x, b.tapes[l])
	case b.needs[l] || b.trains[l]:
		if b.inputs[l], err = b.alloc(x.Rows, x.Cols); err != nil {
			return err
		}
		b.ops.Convert(b.inputs[l], x)
		fallthrough
	default:
		err = b.Run(block.Block, x)
	}
	if err != nil {
		return err
	}

	return b.left(l, x)
}

func (b *backward) edit(state int, x kernels.Mat) error {
	if b.o.Edit == nil {
		return nil
	}
	return b.o.Edit(state, x)
}

// alloc makes a zeroed matrix, which the caller frees.
func (b *backward) alloc(rows, cols int) (kernels.Mat, error) {
	buf, err := b.m.dev.Alloc(kernels.F32, rows*cols)
	if err != nil {
		return kernels.Mat{}, fmt.Errorf("gradients: %w", err)
	}
	return kernels.MatOf(buf, rows, cols), nil
}

// take allocates a zeroed matrix for the whole pass.
func (b *backward) take(rows, cols int) (kernels.Mat, error) {
	x, err := b.alloc(rows, cols)
	if err == nil {
		b.taken = append(b.taken, x.Buf)
	}
	return x, err
}

// tableRoom is memory for the gradient of the token table, all zeros.
func (b *backward) tableRoom() (kernels.Mat, error) {
	p := b.m.embed
	if b.o.Room == nil {
		return b.take(p.rows, p.cols)
	}

	x := b.o.Room(p.Name)
	switch {
	case x.IsZero():
		return b.take(p.rows, p.cols)
	case x.Rows != p.rows || x.Cols != p.cols || x.DType() != kernels.F32:
		return x, fmt.Errorf("%w: the gradient of %s is F32, %d×%d, not %v, %d×%d", ErrInput, p.Name, p.rows, p.cols,
			x.DType(), x.Rows, x.Cols)
	}

	return x, b.m.setup.Zero(x)
}

// release frees the input of block l, if it is kept.
func (b *backward) release(l int) {
	if in := b.inputs[l]; in.Buf != nil {
		in.Buf.Free()
		b.inputs[l] = kernels.Mat{}
	}
}

// down takes the gradient from the last hidden state as far down as anything is wanted.
func (b *backward) down(ctx context.Context) error {
	for l := len(b.m.blocks) - 1; l >= 0; l-- {
		if err := b.hidden(l + 1); err != nil {
			return err
		}
		if !b.needs[l] && !b.trains[l] {
			return nil
		}
		if err := b.back(ctx, l); err != nil {
			return err
		}
	}

	if !b.needs[0] {
		return nil
	}
	if err := b.hidden(0); err != nil {
		return err
	}

	return b.embeddings()
}

// back takes the gradient through block l.
func (b *backward) back(ctx context.Context, l int) error {
	err := b.with(ctx, l, func(block *block) error {
		t := b.tapes[l]
		if t == nil {
			t = &b.scratch.tape
			if err := b.Replay(block.Block, b.inputs[l], t); err != nil {
				return err
			}
		}

		if err := b.openGrads(block.params); err != nil {
			return err
		}
		if err := b.Backward(block.Block, t, b.d, b.needs[l]); err != nil {
			return err
		}

		return b.deliver(block.params)
	})

	// Not before: the tape refers to it. Not at the end of the pass: then the inputs of all blocks would lie beside
	// the gradients of the lowest.
	b.release(l)
	return err
}

// hidden delivers the gradient of a hidden state.
func (b *backward) hidden(state int) error {
	if !b.wantsHidden(state) {
		return nil
	}
	if err := cmp.Or(b.m.setup.Zero(b.d.RowRange(0, b.From)), b.ops.Sync()); err != nil {
		return err
	}
	return b.hooks.HiddenGrad(state, b.d)
}

// openGrads makes room for the wanted gradients of some parameters. Those with one row are zeros.
func (b *backward) openGrads(g group) error {
	b.Grads = map[*layer.Weight]kernels.Mat{}
	n := 0
	for _, p := range g {
		if b.wants(p) {
			n += (p.rows*p.cols + 15) / 16 * 16 // 64 bytes
		}
	}

	if err := b.m.grow(&b.grads, kernels.F32, n); err != nil {
		return fmt.Errorf("gradients: %w", err)
	}

	at := 0
	for _, p := range g {
		if !b.wants(p) {
			continue
		}

		// Kernels add to the gradients of norms and biases, and overwrite those of matrices.
		x := kernels.Mat{Buf: b.grads, Off: at, Rows: p.rows, Cols: p.cols, Stride: p.cols}
		if p.rows == 1 || !p.linear { // norms of heads have a row for each
			if err := b.m.setup.Zero(x); err != nil {
				return err
			}
		}

		b.Grads[&p.Weight] = x
		at += (x.Len() + 15) / 16 * 16
	}

	return nil
}

// deliver hands the gradients of some parameters over.
func (b *backward) deliver(g group) error {
	if err := b.ops.Sync(); err != nil {
		return err
	}

	for _, p := range g {
		if x, ok := b.Grads[&p.Weight]; ok {
			if err := b.hooks.WeightGrad(p.Name, x); err != nil {
				return err
			}
		}
	}

	return nil
}

// grad is where the gradient of a parameter goes; absent: nobody asks.
func (b *backward) grad(p *param) kernels.Mat {
	if p == nil {
		return kernels.Mat{}
	}
	return b.Grads[&p.Weight]
}

// embeddings takes the gradient to the tables, of which that of the tokens comes last.
func (b *backward) embeddings() error {
	m := b.m
	if !b.wantsAny(m.input) {
		return nil
	}
	if err := m.hold(m.input); err != nil {
		return err
	}
	defer m.done(m.input)

	// A tied table has a gradient already, the head's, to which this one is added.
	if b.wants(m.embed) && b.table.IsZero() {
		var err error
		if b.table, err = b.tableRoom(); err != nil {
			return err
		}
	}

	g := slices.DeleteFunc(group{m.embedIn, m.positions}, func(p *param) bool { return p == nil })
	if err := b.openGrads(g); err != nil {
		return err
	}
	if err := b.tables(); err != nil {
		return err
	}
	if err := b.deliver(g); err != nil || b.table.IsZero() {
		return err
	}

	return b.hooks.WeightGrad(m.embed.Name, b.table)
}

// tables computes the gradients of the token and position tables, and of what is between the tokens and the stream.
func (b *backward) tables() error {
	m, d := b.m, b.d
	if g := b.grad(m.positions); !g.IsZero() {
		// Rows of the table that no token has must have a gradient of zero, and GatherBackward only adds.
		if err := m.setup.Zero(g); err != nil {
			return err
		}

		var pos []int32
		for _, n := range b.lens {
			for t := range n {
				pos = append(pos, int32(t))
			}
		}

		b.ops.GatherBackward(g, d, m.positionRows(pos), 1)
	}

	if m.embedIn != nil {
		t, err := b.take(d.Rows, m.config.EmbedDim)
		if err != nil {
			return err
		}

		// Before t is overwritten by the gradient: the projection's own gradient needs its input.
		if g := b.grad(m.embedIn); !g.IsZero() {
			m.setup.Lookup(t, &m.embed.Weight, b.ids, m.config.EmbedScale)
			b.Outer(g, d, t, &m.embedIn.Weight, false)
		}

		b.ops.MatMulNN(t, d, m.embedIn.Value, kernels.MatMul{Precision: m.opts.Precision})
		d = t
	}

	// Together with the head's gradient, where the table is both.
	if !b.table.IsZero() {
		b.ops.GatherBackward(b.table, d, b.ids, m.config.EmbedScale)
	}

	return nil
}
