package edit

import (
	"fmt"
	"math/bits"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// sidecar is what edits keep beside the weights: GRACE's codebook, WISE's side memory, MEMOIR's residual memory. It
// is attached to one down-projection and decides row by row whether it answers, by that row's input alone. So a token
// gets the same answer in a prompt that is run at once, in one that is run in parts, behind a beginning that other
// requests share, and when it is generated: a rule over all tokens of a prompt, as WISE and MEMOIR were published
// with, would need the end of a prompt before its first token.
type sidecar interface {
	lm.Delta
	at() string                         // the matrix
	enter(l lm.Linear, s *Step) error   // takes in what a step wrote
	clear()                             // forgets all steps
	listen(rows []int, everywhere bool) // who may be answered in the following passes
}

// aside reports whether a step wrote into what lies beside the weights.
func (s *Step) aside() bool { return len(s.Codes) > 0 || s.Part != nil }

// kind is what a step wrote into, for people and to tell memories apart.
func (s *Step) kind() string {
	if s.Part != nil {
		return s.Part.Kind
	}
	return "grace"
}

// newSidecar is the empty memory that a step begins.
func newSidecar(m *lm.Model, l lm.Linear, s *Step) sidecar {
	if s.Part != nil {
		return newSide(m, l, s.Part.Kind)
	}
	return &Codebook{Linear: l.Name, rows: site.Rows{Dev: m.Device()}}
}

// attach lets a step write beside the weights; the first one attaches the memory.
func (e *Editing) attach(s *Step) error {
	l, err := named(e.m, s.Linear)
	if err != nil {
		return err
	}

	if p := s.Part; p != nil && !NeedsBackground(p.Kind) {
		return fmt.Errorf("%w: a memory of kind %.100q", ErrJournal, p.Kind)
	}
	if e.beside == nil {
		b := newSidecar(e.m, l, s)
		if e.detach, err = e.m.Attach(b, l.Name); err != nil {
			return err
		}
		e.beside = b
	}

	if e.beside.at() != l.Name || e.holds() != s.kind() {
		return e.other(s.kind(), l.Name)
	}

	return e.beside.enter(l, s)
}

// holds is the kind of the memory that is attached.
func (e *Editing) holds() string {
	if s, ok := e.beside.(*sideMemory); ok {
		return s.kind
	}
	return "grace"
}

// other refuses a second memory.
func (e *Editing) other(kind, linear string) error {
	return fmt.Errorf("%w: the model has a memory of %s at %.200q already, beside which there is no room for one of "+
		"%s %.200q (HINT: go on with the same method and layer)", ErrOptions, e.holds(), e.beside.at(), kind, linear)
}

// Part is what a step writes into a side memory: ΔW ← ΔW + left·rightᵀ, where W + ΔW (WISE) or a product of its own,
// ΔW (MEMOIR), answers at the rows that it takes for its own.
type Part struct {
	Kind string `json:"kind"` // method
	Seed uint64 `json:"seed"` // of masks

	Shard int     `json:"shard,omitempty"` // WISE: which of the memories
	Mask  float64 `json:"mask,omitempty"`  // WISE: fraction of the elements that may change
	Least float64 `json:"least,omitempty"` // WISE: distance between both outputs from which on the memory answers

	Top       int      `json:"top,omitempty"`       // MEMOIR: inputs that name a row
	Threshold float64  `json:"threshold,omitempty"` // MEMOIR: fraction of them that a row must share with a key
	Keys      [][]byte `json:"keys,omitempty"`      // MEMOIR: of the fact, a bit an input
	Center    *numbers `json:"center,omitempty"`    // MEMOIR, first step: mean input of ordinary text

	Left  *numbers `json:"left"`
	Right *numbers `json:"right"`
}

// memoryKinds are the methods that have a side memory.
const (
	kindWISE   = "wise"
	kindMEMOIR = "memoir"
)

// sideMemory is the side memory of WISE or of MEMOIR. It implements [sidecar].
type sideMemory struct {
	kind       string
	linear     lm.Linear
	activation arch.Activation
	dev        kernels.Device
	off        bool

	shards []shard // MEMOIR: one
	steps  int

	top       int
	threshold float64
	keys      []bitset
	center    []float64
	places    []int32 // MEMOIR: where an input's column is in the memory
}

// shard is a matrix that was learnt, beside the model's.
type shard struct {
	change []float32 // [out, in]
	least  float64   // WISE
	edits  int
}

// newSide is an empty memory.
func newSide(m *lm.Model, l lm.Linear, kind string) *sideMemory {
	return &sideMemory{kind: kind, linear: l, activation: m.Config().Activation, dev: m.Device()}
}

func (s *sideMemory) at() string { return s.linear.Name }

func (s *sideMemory) clear() {
	*s = sideMemory{kind: s.kind, linear: s.linear, activation: s.activation, dev: s.dev, off: s.off}
}

// listen turns the memory off while a fact is learnt; which rows ask is its own business.
func (s *sideMemory) listen(rows []int, everywhere bool) { s.off = !everywhere && len(rows) == 0 }

// Backward implements [lm.Delta]; a side memory is not differentiated.
func (s *sideMemory) Backward(lm.Linear, kernels.Mat, kernels.Mat, kernels.Mat) error { return nil }

// Parameters implements [lm.Delta].
func (s *sideMemory) Parameters() []lm.Parameter { return nil }

// Forward implements [lm.Delta].
func (s *sideMemory) Forward(_ lm.Linear, x, y kernels.Mat) error {
	if s.off || s.steps == 0 {
		return nil
	}

	rows := site.Rows{Dev: s.dev}
	in, out := make([][]float64, x.Rows), make([][]float64, x.Rows)
	for i := range in {
		var err error
		if in[i], err = rows.Get(x, i); err != nil {
			return err
		}
		if out[i], err = rows.Get(y, i); err != nil {
			return err
		}
	}

	mmapsafe.Each(0, x.Rows, func(i int) {
		if s.kind == kindWISE {
			out[i] = s.chosen(in[i], out[i])
		} else {
			out[i] = s.recalled(in[i], out[i])
		}
	})

	for i, v := range out {
		if v == nil {
			continue
		}
		if err := rows.Put(y, i, v); err != nil {
			return err
		}
	}
	return nil
}

// enter takes in the part of a step, which may come from a stranger's file.
func (s *sideMemory) enter(l lm.Linear, step *Step) error {
	p := step.Part
	left, err := p.Left.unpack()
	if err != nil {
		return err
	}
	right, err := p.Right.unpack()
	if err != nil {
		return err
	}

	fits := p.Kind == s.kind && NeedsBackground(p.Kind) && left.Rows == l.Out && right.Rows == l.In &&
		left.Cols == right.Cols
	if fits && p.Kind == kindWISE {
		fits = p.Mask > 0 && p.Mask <= 1 && p.Least >= 0
		fits = fits && (p.Shard == len(s.shards) || p.Shard+1 == len(s.shards))
	}
	if fits && p.Kind == kindMEMOIR {
		fits, err = s.learn(l, p)
	}
	if err != nil {
		return err
	}
	if !fits || p.Shard < 0 {
		return fmt.Errorf("%w: what step %d keeps beside the weights does not fit", ErrJournal, s.steps+1)
	}

	if p.Shard == len(s.shards) {
		s.shards = append(s.shards, shard{change: make([]float32, l.Out*l.In), least: p.Least})
	}
	at := &s.shards[p.Shard]
	at.least = min(at.least, p.Least)
	at.edits++
	at.add(left, right, s.mask(p.Seed, p.Shard, p.Mask))
	s.steps++
	return nil
}

// add adds left·rightᵀ, where a mask is set.
func (h *shard) add(left, right linalg.Matrix, open func(i int) bool) {
	in := right.Rows
	mmapsafe.Each(0, left.Rows, func(i int) {
		row, l := h.change[i*in:(i+1)*in], left.Row(i)
		for j := range row {
			if open != nil && !open(i*in+j) {
				continue
			}
			sum := 0.0
			for k, v := range right.Row(j) {
				sum += float64(l[k] * v) // not fused, so that every machine has the same bits
			}
			row[j] += float32(sum)
		}
	})
}

// times is the shard's product with an input.
func (h *shard) times(x []float64) []float64 {
	y := make([]float64, len(h.change)/len(x))
	for i := range y {
		sum := 0.0
		for j, v := range h.change[i*len(x) : (i+1)*len(x)] {
			sum += float64(float64(v) * x[j])
		}
		y[i] = sum
	}
	return y
}

// mask says which elements of a WISE memory may change: a random fraction of them, for each shard another. nil: all.
func (s *sideMemory) mask(seed uint64, shard int, fraction float64) func(i int) bool {
	if s.kind != kindWISE || fraction >= 1 {
		return nil
	}
	key := rng.New(seed, "wise").With(uint64(shard))
	return func(i int) bool { return key.Float(uint64(i)) < fraction }
}

// bitset is a set of inputs.
type bitset []uint64

// setOf reads the bytes of a set.
func setOf(text []byte) bitset {
	b := make(bitset, (len(text)+7)/8)
	for i, v := range text {
		b[i/8] |= uint64(v) << (8 * (i % 8))
	}
	return b
}

// bytes are those of a set of n inputs.
func (b bitset) bytes(n int) []byte {
	out := make([]byte, (n+7)/8)
	for i := range out {
		out[i] = byte(b[i/8] >> (8 * (i % 8)))
	}
	return out
}

// placesOf is the permutation of columns.
func placesOf(seed uint64, n int) []int32 { return rng.New(seed, "memoir").Permutation(n) }

func (b bitset) has(i int) bool { return b[i/64]>>(i%64)&1 == 1 }

func (b bitset) size() int {
	n := 0
	for _, v := range b {
		n += bits.OnesCount64(v)
	}
	return n
}

// common is how many members two sets share.
func (b bitset) common(o bitset) int {
	n := 0
	for i, v := range b {
		n += bits.OnesCount64(v & o[i])
	}
	return n
}
