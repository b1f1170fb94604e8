package layer

import (
	"slices"
	"sync"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// rotation is the rotary positions of consecutive rows.
type rotation struct {
	table *ropeTable
	pos   []int32
}

// tableKind is which cosines and sines a table holds.
type tableKind struct {
	rope *arch.Rope
	long bool // the long form of longrope
}

// tables are cosines and sines that passes share.
type tables struct {
	mu     sync.Mutex
	byKind map[tableKind]*ropeTable
}

func (t *tables) free() {
	for _, table := range t.byKind {
		table.free()
	}
	t.byKind = nil
}

// positions works out the rotations of every row.
func (p *Pass) positions() error {
	if len(p.Config.Ropes) == 0 {
		return nil
	}

	// Room for all of them before the first is taken: rotations are views of one list.
	p.scratch.pos = slices.Grow(p.scratch.pos[:0], p.rows*len(p.Config.Ropes))
	p.scratch.shared = slices.Grow(p.scratch.shared[:0], len(p.Config.Ropes))
	p.scratch.turns = p.scratch.turns[:0]
	for _, rope := range p.Config.Ropes {
		list, err := p.positionsOf(rope)
		if err != nil {
			return err
		}
		p.scratch.turns = append(p.scratch.turns, list)
	}

	p.rotations = p.scratch.turns
	return nil
}

// positionsOf works out one of them. Where frequencies depend on the length, every sequence has its own.
func (p *Pass) positionsOf(rope *arch.Rope) ([]rotation, error) {
	first := len(p.scratch.pos)
	longest := 0
	for i, n := range p.lens {
		start, _ := p.span(i)
		for t := range n {
			p.scratch.pos = append(p.scratch.pos, int32(start+t))
		}
		longest = max(longest, start+n)
	}

	// The usual case: the angles of a position are the same in every sequence, so that one rotation serves all rows.
	pos := p.scratch.pos[first:]
	if rope.Static() {
		t, err := p.ropeTable(rope, longest, longest)
		p.scratch.shared = append(p.scratch.shared, rotation{t, pos})
		return p.scratch.shared[len(p.scratch.shared)-1:], err
	}

	at := 0
	var list []rotation
	for i, n := range p.lens {
		s := rotation{pos: pos[at : at+n]}
		start, total := p.span(i)
		var err error
		if s.table, err = p.lengthTable(rope, s.pos, start, max(start+n, total)); err != nil {
			return nil, err
		}

		list = append(list, s)
		at += n
	}

	return list, nil
}

// lengthTable finds the table of a sequence of n positions that starts at start, for frequencies that depend on
// n. A table that no other length shares covers only the new positions, and pos is changed to count from its
// first row.
func (p *Pass) lengthTable(rope *arch.Rope, pos []int32, start, n int) (*ropeTable, error) {
	if rope.Type == "longrope" || n <= rope.MaxPositions {
		return p.ropeTable(rope, n, n)
	}

	t, err := p.newRopeTable(rope, start, len(pos), n)
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

// ropeTable gives a table of at least rows positions for sequences of n positions. Tables are shared and grow
// by doubling.
func (s *Setup) ropeTable(rope *arch.Rope, rows, n int) (*ropeTable, error) {
	kind := tableKind{rope, rope.Type == "longrope" && n > rope.Original}

	s.rope.mu.Lock()
	defer s.rope.mu.Unlock()

	old := s.rope.byKind[kind]
	if old != nil && old.cos.Rows >= rows {
		return old, nil
	}

	size := 256
	for size < rows {
		size *= 2
	}

	t, err := s.newRopeTable(rope, 0, size, n)
	if err != nil {
		return nil, err
	}

	t.older = old // not freed: other passes may be reading it
	s.rope.byKind[kind] = t
	return t, nil
}

// newRopeTable computes the positions [start, start+rows) for sequences of n positions.
func (s *Setup) newRopeTable(rope *arch.Rope, start, rows, n int) (*ropeTable, error) {
	half := rope.Dim / 2
	cos, sin := make([]float32, rows*half), make([]float32, rows*half)
	rope.Fill(cos, sin, start, n)
	t := &ropeTable{}
	var err error
	if t.cos, err = s.matOf(cos, rows, half); err != nil {
		return nil, err
	}

	t.sin, err = s.matOf(sin, rows, half)
	return t, err
}

// matOf brings host numbers to the device.
func (s *Setup) matOf(x []float32, rows, cols int) (kernels.Mat, error) {
	b := kernels.WrapF32(x)
	if s.host {
		return kernels.MatOf(b, rows, cols), nil
	}
	d, err := s.Device.Alloc(kernels.F32, len(x))
	if err != nil {
		return kernels.Mat{}, err
	}
	return kernels.MatOf(d, rows, cols), s.Device.Upload(d, 0, b.Bytes())
}
