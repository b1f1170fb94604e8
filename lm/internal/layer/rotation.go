package layer

import (
	"sync"

	"github.com/modelcompress/compress/kernels"
)

// rotation is the rotary positions of consecutive rows.
type rotation struct {
	table *ropeTable
	pos   []int32
}

// tables are cosines and sines that passes share, by kind: 1 is for the long form of longrope, 0 for everything else.
type tables struct {
	mu     sync.Mutex
	byKind map[int]*ropeTable
}

func (t *tables) free() {
	for _, table := range t.byKind {
		table.free()
	}
	t.byKind = nil
}

// positions works out the rotation of every row. Where frequencies depend on the length, every sequence has its own.
func (p *Pass) positions() error {
	rope := p.Config.Rope
	if rope == nil {
		return nil
	}

	p.scratch.pos = p.scratch.pos[:0]
	longest := 0
	for i, n := range p.lens {
		start, _ := p.span(i)
		for t := range n {
			p.scratch.pos = append(p.scratch.pos, int32(start+t))
		}
		longest = max(longest, start+n)
	}

	// The usual case: the angles of a position are the same in every sequence, so that one rotation serves all rows.
	if rope.Static() {
		t, err := p.ropeTable(longest, longest)
		p.scratch.one[0] = rotation{t, p.scratch.pos}
		p.rotations = p.scratch.one[:]
		return err
	}

	at := 0
	for i, n := range p.lens {
		s := rotation{pos: p.scratch.pos[at : at+n]}
		start, total := p.span(i)
		var err error
		if s.table, err = p.lengthTable(s.pos, start, max(start+n, total)); err != nil {
			return err
		}

		p.rotations = append(p.rotations, s)
		at += n
	}

	return nil
}

// lengthTable finds the table of a sequence of n positions that starts at start, for frequencies that depend on
// n. A table that no other length shares covers only the new positions, and pos is changed to count from its
// first row.
func (p *Pass) lengthTable(pos []int32, start, n int) (*ropeTable, error) {
	rope := p.Config.Rope
	if rope.Type == "longrope" || n <= rope.MaxPositions {
		return p.ropeTable(n, n)
	}

	t, err := p.newRopeTable(start, len(pos), n)
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
func (s *Setup) ropeTable(rows, n int) (*ropeTable, error) {
	rope := s.Config.Rope
	kind := 0
	if rope.Type == "longrope" && n > rope.Original {
		kind = 1
	}

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

	t, err := s.newRopeTable(0, size, n)
	if err != nil {
		return nil, err
	}

	t.older = old // not freed: other passes may be reading it
	s.rope.byKind[kind] = t
	return t, nil
}

// newRopeTable computes the positions [start, start+rows) for sequences of n positions.
func (s *Setup) newRopeTable(start, rows, n int) (*ropeTable, error) {
	half := s.Config.Rope.Dim / 2
	cos, sin := make([]float32, rows*half), make([]float32, rows*half)
	s.Config.Rope.Fill(cos, sin, start, n)
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
