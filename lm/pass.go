package lm

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
)

// The scratch matrices of a pass. They are reused from block to block; those of attention and those of the MLP share
// the same memory, because the one has ended when the other begins.
const (
	sNorm = iota
	sNorm2
	sBranch
	sDelta

	sQ // attention
	sK
	sV
	sQKV
	sAttn

	sGate // MLP
	sUp
	sRoute
	sExpertIn
	sExpertOut
	scratchSlots
)

// scratch is the working memory of one pass.
type scratch struct {
	arena  *kernels.Buffer
	base   [scratchSlots + 1]int // where each matrix starts in the arena
	head   [3]*kernels.Buffer    // rows, logits, losses
	pos    []int32               // rows' positions in the tables of the rotation
	steps  []int32               // rows' positions in the sequence
	one    [1]rotation
	routes []expertTokens
}

func (s *scratch) free() {
	for _, b := range append(s.head[:], s.arena) {
		if b != nil {
			b.Free()
		}
	}
	*s = scratch{}
}

// pass is one run over some rows.
type pass struct {
	m   *Model
	ops *kernels.Ops
	*scratch
	lens      []int
	rotations []rotation
	own       []*ropeTable // tables of this pass alone
	hooks     *Hooks
	cache     *Session
}

// rotation is the rotary positions of consecutive rows.
type rotation struct {
	table *ropeTable
	pos   []int32
}

// begin prepares a pass over sequences of the given lengths, which start at position 0.
func (m *Model) begin(s *scratch, lens []int) (*pass, error) {
	return m.beginAt(s, lens, 0, 0)
}

// beginAt is begin for sequences that start at position start; a single one may be part of a longer one of total tokens.
func (m *Model) beginAt(s *scratch, lens []int, start, total int) (*pass, error) {
	p := &pass{m: m, ops: m.ops, scratch: s, lens: lens}
	rows := 0
	for _, n := range lens {
		rows += n
	}
	if err := p.reserve(rows); err != nil {
		return nil, err
	}
	if err := p.positions(start, total); err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

// end gives back what belongs to the pass alone.
func (p *pass) end() {
	for _, t := range p.own {
		t.free()
	}
	p.own = nil
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

// reserve makes the arena large enough for a number of rows, so that taking a matrix cannot fail.
func (p *pass) reserve(rows int) error {
	w := p.m.widths()
	end := [2]int{}
	at := 0
	for slot, width := range w {
		switch slot {
		case sQ:
			end[0] = at
		case sGate:
			end[1], at = at, end[0]
		}
		p.base[slot] = at
		at += (rows*width + 15) / 16 * 16 // 64 bytes
	}
	p.base[scratchSlots] = max(at, end[1])
	if err := p.m.grow(&p.arena, kernels.F32, p.base[scratchSlots]); err != nil {
		return fmt.Errorf("activations of %d tokens: %w", rows, err)
	}
	return nil
}

// grow replaces a buffer that is too small.
func (m *Model) grow(b **kernels.Buffer, t kernels.DType, n int) error {
	if n == 0 || *b != nil && (*b).Len >= n {
		return nil
	}
	if *b != nil {
		(*b).Free()
		*b = nil
	}
	fresh, err := m.dev.Alloc(t, n)
	if err == nil {
		*b = fresh
	}
	return err
}

// widths are the columns of the scratch matrices, 0 for those that the model does not use.
func (m *Model) widths() (w [scratchSlots]int) {
	c := m.config
	first := m.blocks[0]
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	inner := max(c.Inner, c.ExpertInner, c.SharedInner)
	w[sNorm], w[sAttn], w[sGate], w[sUp] = c.Hidden, q, inner, inner
	if c.Parallel {
		w[sNorm2] = c.Hidden
	}
	if first.qkv != nil {
		w[sQKV] = q + 2*kv
	} else {
		w[sQ], w[sK], w[sV] = q, kv, kv
	}
	if first.attnPost.w != nil {
		w[sBranch] = c.Hidden
	}
	if first.experts[0].gateUp != nil {
		w[sGate] = 2 * inner
	}
	if c.Experts > 0 {
		w[sRoute], w[sExpertIn], w[sExpertOut] = c.Experts, c.Hidden, c.Hidden
	}
	if m.deltas > 0 {
		w[sDelta] = max(q+2*kv, 2*inner, c.Hidden)
	}
	return w
}

// mat is a scratch matrix; its contents are undefined.
func (p *pass) mat(slot, rows, cols int) kernels.Mat {
	return kernels.Mat{Buf: p.arena, Off: p.base[slot], Rows: rows, Cols: cols, Stride: cols}
}

// onHost runs f over the rows of x in host memory; what f changes reaches the device.
func (p *pass) onHost(x kernels.Mat, f func(row []float32)) error {
	if p.m.host {
		for i := range x.Rows {
			f(x.RowF32(i))
		}
		x.Buf.Changed()
		return nil
	}
	row := make([]float32, x.Cols)
	raw := kernels.WrapF32(row).Bytes()
	for i := range x.Rows {
		at := x.Off + i*x.Stride
		if err := p.m.dev.Download(raw, x.Buf, at); err != nil {
			return err
		}
		f(row)
		if err := p.m.dev.Upload(x.Buf, at, raw); err != nil {
			return err
		}
	}
	return nil
}

// positions works out the rotation of every row. Where frequencies depend on the length, every sequence has its own.
func (p *pass) positions(start, total int) error {
	rope := p.m.config.Rope
	if rope == nil {
		return nil
	}
	p.pos = p.pos[:0]
	longest := 0
	for _, n := range p.lens {
		for i := range n {
			p.pos = append(p.pos, int32(start+i))
		}
		longest = max(longest, start+n)
	}
	if rope.Static() {
		t, err := p.m.ropeTable(longest, longest)
		p.one[0] = rotation{t, p.pos}
		p.rotations = p.one[:]
		return err
	}
	at := 0
	for _, n := range p.lens {
		s := rotation{pos: p.pos[at : at+n]}
		var err error
		if s.table, err = p.lengthTable(s.pos, start, max(start+n, total)); err != nil {
			return err
		}
		p.rotations = append(p.rotations, s)
		at += n
	}
	return nil
}

// lengthTable finds the table of a sequence of n positions that starts at start, for frequencies that depend on n. A table
// that no other length shares covers only the new positions, and pos is changed to count from its first row.
func (p *pass) lengthTable(pos []int32, start, n int) (*ropeTable, error) {
	rope := p.m.config.Rope
	if rope.Type == "longrope" || n <= rope.MaxPositions {
		return p.m.ropeTable(n, n)
	}
	t, err := p.m.newRopeTable(start, len(pos), n)
	if err != nil {
		return nil, err
	}
	p.own = append(p.own, t)
	for i := range pos {
		pos[i] = int32(i)
	}
	return t, nil
}

// ropeTable holds cosines and sines, F32 [rows, Dim/2].
type ropeTable struct {
	cos, sin kernels.Mat
	older    *ropeTable // smaller tables that passes may still use
}

func (t *ropeTable) free() {
	for ; t != nil; t = t.older {
		t.cos.Buf.Free()
		t.sin.Buf.Free()
	}
}

// ropeTable gives a table of at least rows positions for sequences of n positions. Tables are shared and grow by doubling.
func (m *Model) ropeTable(rows, n int) (*ropeTable, error) {
	rope := m.config.Rope
	kind := 0
	if rope.Type == "longrope" && n > rope.Original {
		kind = 1
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.tables[kind]
	if old != nil && old.cos.Rows >= rows {
		return old, nil
	}
	size := 256
	for size < rows {
		size *= 2
	}
	t, err := m.newRopeTable(0, size, n)
	if err != nil {
		return nil, err
	}
	t.older = old
	m.tables[kind] = t
	return t, nil
}

// newRopeTable computes the positions [start, start+rows) for sequences of n positions.
func (m *Model) newRopeTable(start, rows, n int) (*ropeTable, error) {
	half := m.config.Rope.Dim / 2
	cos, sin := make([]float32, rows*half), make([]float32, rows*half)
	m.config.Rope.Fill(cos, sin, start, n)
	t := &ropeTable{}
	var err error
	if t.cos, err = m.matOf(cos, rows, half); err != nil {
		return nil, err
	}
	t.sin, err = m.matOf(sin, rows, half)
	return t, err
}

// matOf brings host numbers to the device.
func (m *Model) matOf(x []float32, rows, cols int) (kernels.Mat, error) {
	b := kernels.WrapF32(x)
	if m.host {
		return kernels.MatOf(b, rows, cols), nil
	}
	d, err := m.dev.Alloc(kernels.F32, len(x))
	if err != nil {
		return kernels.Mat{}, err
	}
	return kernels.MatOf(d, rows, cols), m.dev.Upload(d, 0, b.Bytes())
}
