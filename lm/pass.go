package lm

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// block is one layer of the model and its parameters.
type block struct {
	*layer.Block
	params  group
	roles   []arch.Param // what they are, in the same order
	linears []linear     // in order of use
}

// linear is a matrix of a block as others know it, and as the block does.
type linear struct {
	Linear
	at *layer.Linear
}

// finish lists the linears once all parameters are in their places.
func (b *block) finish() {
	for i, l := range b.Linears() {
		l.ID = i
		b.linears = append(b.linears, linear{at: l, Linear: Linear{
			Name: l.W.Name, Block: b.Index, Role: l.Role, Expert: l.Expert, In: l.In, Out: l.Out,
			Transposed: l.Transposed,
		}})
	}
}

// The buffers of the head.
const (
	headStream = iota // rows of the stream
	headNormed        // the same after the final norm
	headIn            // what the head multiplies, where that is another width
	headScaled        // and where logits are scaled
	headLogits
	headLosses
	headCapped     // capped logits, which gradients need
	headGrad       // gradient of the stream
	headGradNormed // and after the norm
	headGradIn
	headGradScaled
	headBuffers
)

// scratch is the working memory of one pass.
type scratch struct {
	blocks layer.Scratch
	head   [headBuffers]*kernels.Buffer
	tape   layer.Tape    // of the last block of a backward pass, then of those that are computed again
	kept   []*layer.Tape // of the blocks before it, by their numbers
	steps  []int32       // rows' positions in the sequence
}

func (s *scratch) free() {
	for _, b := range s.head {
		if b != nil {
			b.Free()
		}
	}

	for _, t := range append(s.kept, &s.tape) {
		t.Free()
	}

	s.blocks.Free()
	*s = scratch{}
}

// borrow takes working memory from the pool.
func (m *Model) borrow() *scratch {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.pool); n > 0 {
		s := m.pool[n-1]
		m.pool = m.pool[:n-1]
		return s
	}
	return &scratch{}
}

// giveBack returns working memory to the pool, which keeps a little.
func (m *Model) giveBack(s *scratch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pool) < 2 {
		m.pool = append(m.pool, s)
		return
	}
	s.free()
}

// grow replaces a buffer that is too small.
func (m *Model) grow(b **kernels.Buffer, t kernels.DType, n int) error {
	return layer.Grow(m.dev, b, t, n)
}

// pass is one run over some rows.
type pass struct {
	*layer.Pass
	m       *Model
	ops     *kernels.Ops
	scratch *scratch
	lens    []int
	hooks   *Hooks
	block   *block // that runs now
}

// begin prepares a pass over sequences of the given lengths, which start at position 0.
func (m *Model) begin(s *scratch, lens []int, hooks *Hooks) (*pass, error) {
	return m.beginAfter(s, lens, hooks, nil)
}

// beginAfter is begin for sequences with something before them.
func (m *Model) beginAfter(s *scratch, lens []int, hooks *Hooks, past []layer.Past) (*pass, error) {
	inner, err := m.setup.Begin(&s.blocks, lens, past)
	if err != nil {
		return nil, err
	}
	p := &pass{Pass: inner, m: m, ops: m.ops, scratch: s, lens: lens, hooks: hooks}
	if hooks != nil && hooks.LinearInput != nil {
		inner.Input = func(l *layer.Linear, x kernels.Mat) { hooks.LinearInput(p.block.linears[l.ID].Linear, x) }
	}
	if hooks != nil && hooks.Expert != nil {
		inner.Expert = func(b *layer.Block, expert int, y kernels.Mat, ids []int32, weights []float32) {
			hooks.Expert(Routed{Block: b.Index, Expert: expert, Y: y, Rows: ids, Weights: weights})
		}
	}
	if hooks != nil && hooks.Route != nil {
		inner.Route = func(b *layer.Block) layer.Routing {
			r := layer.Routing(hooks.Route(b.Index))
			if r.TopK == 0 {
				r.TopK = m.config.TopK
			}
			return r
		}
	}
	return p, nil
}

// outside is a pass that runs no block.
func (m *Model) outside(s *scratch, lens []int) *pass {
	return &pass{Pass: m.setup.Norms(), m: m, ops: m.ops, scratch: s, lens: lens}
}
