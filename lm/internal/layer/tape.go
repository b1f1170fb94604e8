package layer

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// The matrices of a block. A plain run gives several of them the same memory (see sharing).
const (
	sIn      = iota // the block's input; recorded only
	sNorm           // what attention sees
	sNorm2          // what the MLP sees
	sMiddle         // the stream between attention and MLP; recorded only
	sSum            // the stream before the first norm, where norms come last; recorded only
	sSum2           // and before the second; recorded only
	sBranch         // attention's output before its norm
	sBranch2        // the MLP's output before its norm
	sNormed         // either after its norm
	sDelta
	sVector // a parameter on its way to the host

	sQ // attention
	sK
	sV
	sQKV
	sQRaw // before their norms
	sKRaw
	sQOpen // before they are clamped; recorded only
	sKOpen
	sVOpen
	sAttn
	sLSE  // recorded only, but for sinks
	sQLow // latents of queries, before and after their norm
	sQLowNormed
	sKVLow // of keys and values
	sKVLowNormed
	sKVUp       // what that expands to
	sAttnNarrow // attention's output where heads are padded

	sGate // MLP; recorded mixtures keep the rows of all experts, one expert after another
	sUp
	sMid
	sRoute
	sExpertIn
	sExpertOut
	sSharedGate
	sSharedUp
	sSharedMid
	sSharedOut
	sSharedRoute

	slots
)

// The matrices of a backward pass: gradients of what the names say.
const (
	gNorm = iota
	gNorm2
	gBranch
	gSum
	gDelta
	gAttn
	gQ
	gK
	gV
	gQKV
	gQRaw
	gKRaw
	gMid
	gRoute
	gRouter
	gRows // rows of one expert
	gExpertIn
	gExpertOut
	gInput // what an expert sees, gathered again
	gQLow
	gQLowNormed
	gKVLow
	gKVLowNormed
	gKVUp
	gAttnNarrow
	gSlots
)

// Memory of attention starts at firstAttn, that of the MLP at firstMLP: a plain run lays the one over the other, since
// attention is over when the MLP begins.
const (
	firstAttn = sQ
	firstMLP  = sGate
)

// sharing says which matrices use the memory of another in a plain run: the one is no longer needed when the other
// is written, or the operation works in place.
var sharing = map[int]int{
	sNorm2: sNorm, sBranch2: sBranch, sNormed: sBranch, sQRaw: sQ, sKRaw: sK, sMid: sUp, sSharedGate: sGate,
	sSharedUp:  sUp,
	sSharedMid: sUp, sSharedOut: sExpertOut, sSharedRoute: sRoute,
}

// recorded lists what only a recorded run needs.
var recorded = []int{sIn, sMiddle, sSum, sSum2, sQOpen, sKOpen, sVOpen, sLSE}

// perExpert lists what a recorded mixture keeps for the rows of all experts.
var perExpert = []int{sGate, sUp, sMid, sExpertOut}

// Tape is the working memory of one block. The zero value is empty; memory is taken when it is first used, and kept.
type Tape struct {
	arena  *kernels.Buffer
	base   [slots]int  // where each matrix starts
	again  [slots]bool // what is not kept: it lies in the plain tape, and the backward pass computes it again
	full   bool        // nothing shares memory
	in     kernels.Mat
	routes []route
}

// Free gives the memory back.
func (t *Tape) Free() {
	if t.arena != nil {
		t.arena.Free()
	}
	*t = Tape{}
}

// Scratch is the working memory of one pass at a time. The zero value is empty.
type Scratch struct {
	plain               Tape
	grads               Tape
	expanded            *kernels.Buffer // a sparse weight, in the backward pass
	filledIn, filledOut *kernels.Buffer // of a product whose rows were too few
	fill                []int32
	weights             *kernels.Buffer // attention of new queries, for eviction
	past                *kernels.Buffer // gradients of the keys and values of one sequence, earlier ones included
	pos                 []int32         // rows' positions in the tables of the rotation
	shared              []rotation      // of all rows, for each rotation
	turns               [][]rotation
	pairs               []kernels.LowRank // of all rows of a linear
	sequences           []kernels.SequenceAttention
}

// Free gives the memory back.
func (s *Scratch) Free() {
	s.plain.Free()
	s.grads.Free()
	for _, b := range []**kernels.Buffer{&s.expanded, &s.weights, &s.past, &s.filledIn, &s.filledOut} {
		if *b != nil {
			(*b).Free()
			*b = nil
		}
	}
}

// round64 rounds a number of F32 elements up to 64 bytes.
func round64(n int) int { return (n + 15) / 16 * 16 }

// reservePlain makes the plain tape large enough for a number of rows, so that taking a matrix cannot fail.
func (s *Setup) reservePlain(t *Tape, rows int) error {
	w := s.plain
	at := 0
	start := 0 // of attention
	end := 0   // of attention
	for slot, width := range w {
		switch slot {
		case firstAttn:
			start = at
		case firstMLP:
			end, at = at, start
		}

		t.base[slot] = at
		at += round64(rows * width)
	}

	for slot := range w {
		t.base[slot] = t.base[s.shares(slot)]
	}

	return s.size(t, max(at, end), rows)
}

// reserveTape does the same for a tape that keeps what the backward pass reads of a block: nothing overlaps.
func (s *Setup) reserveTape(t *Tape, b *Block, rows int) error {
	n := s.layTape(t, b, rows)
	t.full = true
	return s.size(t, n, rows)
}

// remade marks what a tape does not keep. What a norm or an activation gives is a pass over memory, nothing beside the
// products around it, and a third of what a block with a gated MLP would keep.
func (s *Setup) remade(b *Block) (again [slots]bool) {
	again[sNorm], again[sNorm2] = true, true
	again[sMid] = !b.Mixture // the rows of all experts would have to lie in one working memory
	return again
}

// layTape places the matrices of a recorded block and gives their elements.
func (s *Setup) layTape(t *Tape, b *Block, rows int) int {
	w := s.widths(b)
	w[sExpertIn] = 0 // gathered again
	t.again = s.remade(b)
	for slot, again := range t.again {
		if again {
			w[slot] = 0
		}
	}

	if b.Mixture { // a token is a row of TopK experts
		for _, slot := range perExpert {
			w[slot] *= s.Config.TopK
		}
	}

	at := 0
	for slot, width := range w {
		t.base[slot] = at
		at += round64(rows * width)
	}

	if b.Mixture { // what one expert sees, while it runs
		t.base[sExpertIn] = at
		at += round64(rows * s.Config.Hidden)
	}

	return at
}

// TapeBytes is the memory that a recorded block takes for a number of rows.
func (s *Setup) TapeBytes(b *Block, rows int) int64 {
	return 4 * int64(s.layTape(&Tape{}, b, rows))
}

// reserveGrads makes room for the gradients on the way through a block.
func (s *Setup) reserveGrads(t *Tape, b *Block, rows int) error {
	at := 0
	for slot, width := range s.gradWidths(b) {
		t.base[slot] = at
		at += round64(rows * width)
	}
	return s.size(t, at, rows)
}

func (s *Setup) size(t *Tape, n, rows int) error {
	if err := Grow(s.Device, &t.arena, kernels.F32, n); err != nil {
		return fmt.Errorf("activations of %d tokens: %w", rows, err)
	}
	return nil
}

// Grow replaces a buffer that is too small.
func Grow(dev kernels.Device, b **kernels.Buffer, t kernels.DType, n int) error {
	if n == 0 || *b != nil && (*b).Len >= n {
		return nil
	}

	if *b != nil { // before the new one is there, or both would have to fit
		(*b).Free()
		*b = nil
	}

	fresh, err := dev.Alloc(t, n)
	if err == nil {
		*b = fresh
	}

	return err
}

// shares is the matrix whose memory a plain run uses for another.
func (s *Setup) shares(slot int) int {
	to, ok := sharing[slot]
	if !ok || slot == sNorm2 && s.Config.Parallel || slot == sQRaw && s.Config.KVRank > 0 { // of other widths
		return slot
	}
	return to
}

// plainWidths are the columns of the matrices of a plain run over any of the blocks.
func (s *Setup) plainWidths(blocks []*Block) (w [slots]int) {
	for _, b := range blocks {
		for slot, n := range s.widths(b) {
			to := s.shares(slot)
			w[to] = max(w[to], n)
		}
	}

	w[sDelta] = s.Config.Hidden // passes in company need it without deltas, too
	sinks := slices.ContainsFunc(blocks, func(b *Block) bool { return b.Sinks != nil })
	for _, slot := range recorded {
		if slot != sLSE || !sinks {
			w[slot] = 0
		}
	}

	return w
}

// widths are the columns of the matrices of a block, 0 for those that it does not use.
func (s *Setup) widths(b *Block) (w [slots]int) {
	c := s.Config
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	w[sIn] = c.Hidden
	w[sNorm] = max(c.Hidden, c.EmbedDim) // embeddings use it too; see Spare
	w[sAttn] = q
	w[sLSE] = c.Heads
	if b.Sinks != nil || b.RouterOffset != nil {
		w[sVector] = max(c.Heads, c.Experts)
	}

	switch {
	case c.PostNorm:
		w[sMiddle] = c.Hidden
		w[sSum] = c.Hidden
		w[sSum2] = c.Hidden
	case c.Parallel:
		if b.MLPNorm.W != nil {
			w[sNorm2] = c.Hidden
		}
	default:
		w[sNorm2], w[sMiddle] = c.Hidden, c.Hidden
	}

	s.headWidths(b, &w)
	if c.ClipQKV > 0 {
		w[sQOpen] = max(q, w[sQKV])
		w[sKOpen] = max(kv, w[sQKV])
		w[sVOpen] = max(kv, w[sQKV])
	}

	if b.AttnPost.W != nil || c.ResidualScale != 1 {
		w[sBranch], w[sNormed] = c.Hidden, c.Hidden
	}
	if b.MLPPost.W != nil || c.ResidualScale != 1 {
		w[sBranch2], w[sNormed] = c.Hidden, c.Hidden
	}

	s.mlpWidths(b, &w)
	if s.Deltas > 0 {
		w[sDelta] = c.Hidden // only what the stream gets is added
	}

	return w
}

// headWidths are those of queries, keys and values.
func (s *Setup) headWidths(b *Block, w *[slots]int) {
	c := s.Config
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	if b.QKV != nil {
		w[sQKV] = q + 2*kv
	} else {
		w[sQ] = q
		w[sK] = kv
		w[sV] = kv
	}

	// Grouped projections: the queries' heads are brought into order in a matrix of their own.
	if grouped(c) {
		w[sQ] = q
	}

	// The gradient of a norm needs its input too.
	if c.QKNorm != "" {
		w[sQ] = q
		w[sK] = kv
		w[sQRaw] = q
		w[sKRaw] = kv
	}

	if b.KVA != nil {
		w[sQRaw] = c.Heads * (c.NopeDim + c.RopeDim)
		w[sQLow] = c.QRank
		w[sQLowNormed] = c.QRank
		w[sKVLow] = c.KVRank + c.RopeDim
		w[sKVLowNormed] = c.KVRank
		w[sKVUp] = c.Heads * (c.NopeDim + c.VDim)
		w[sAttnNarrow] = c.Heads * c.VDim
	}
}

func (s *Setup) mlpWidths(b *Block, w *[slots]int) {
	f := &b.Experts[0]
	w[sUp], w[sMid] = f.Down.In, f.Down.In

	switch {
	case f.GateUp != nil:
		w[sGate], w[sUp] = 2*f.Down.In, 0
	case f.Gate != nil:
		w[sGate] = f.Down.In
	}

	if !b.Mixture {
		return
	}

	c := s.Config
	w[sRoute] = c.Experts
	w[sExpertIn] = c.Hidden
	w[sExpertOut] = c.Hidden

	if f := b.Shared; f != nil {
		w[sSharedGate] = f.Down.In
		if f.GateUp != nil {
			w[sSharedGate] = 2 * f.Down.In
		}
		w[sSharedUp] = f.Down.In
		w[sSharedMid] = f.Down.In
		w[sSharedOut] = c.Hidden
		w[sSharedRoute] = 1
	}
}

// gradWidths are the columns of the gradients of a block.
func (s *Setup) gradWidths(b *Block) (w [gSlots]int) {
	c := s.Config
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	w[gNorm] = c.Hidden
	w[gAttn] = q
	w[gMid] = b.Experts[0].Down.In

	if c.Parallel {
		w[gNorm2] = c.Hidden
	}
	if c.PostNorm {
		w[gSum] = c.Hidden
	}
	if b.AttnPost.W != nil || b.MLPPost.W != nil || c.ResidualScale != 1 {
		w[gBranch] = c.Hidden
	}

	if b.QKV != nil {
		w[gQKV] = q + 2*kv
	} else {
		w[gQ] = q
		w[gK] = kv
		w[gV] = kv
	}

	if grouped(c) {
		w[gQ] = q
	}
	if b.KVA != nil {
		w[gQRaw] = c.Heads * (c.NopeDim + c.RopeDim)
		w[gQLow] = c.QRank
		w[gQLowNormed] = c.QRank
		w[gKVLow] = c.KVRank + c.RopeDim
		w[gKVLowNormed] = c.KVRank
		w[gKVUp] = c.Heads * (c.NopeDim + c.VDim)
		w[gAttnNarrow] = c.Heads * c.VDim
	}

	if c.QKNorm != "" {
		w[gQ] = q
		w[gK] = kv
		w[gQRaw] = q
		w[gKRaw] = kv
	}

	if b.Mixture {
		w[gRoute] = c.Experts
		w[gRouter] = c.Experts
		w[gRows] = c.Hidden
		w[gExpertIn] = c.Hidden
		w[gExpertOut] = c.Hidden
		w[gInput] = c.Hidden
	}

	// Used for the shared expert after the others, so the widest one counts.
	if b.Shared != nil {
		w[gMid] = max(w[gMid], b.Shared.Down.In)
	}
	if s.Deltas > 0 {
		w[gDelta] = s.widest(b, func(l *Linear) int { return l.In })
	}

	return w
}

func (s *Setup) widest(b *Block, of func(l *Linear) int) int {
	n := 0
	for _, l := range b.Linears() {
		n = max(n, of(l))
	}
	return n
}
