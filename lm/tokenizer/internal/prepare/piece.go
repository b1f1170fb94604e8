// Package prepare holds what happens to a text before the model sees it: normalizers edit it, pre-tokenizers cut it,
// and pieces remember where they came from.
package prepare

import "strings"

// Span is a range of bytes [Start, End) of the text that was encoded.
type Span struct{ Start, End int }

// Piece is a stretch of text on its way through the pipeline. Only when offsets are wanted does it know, byte by byte,
// where it came from; otherwise origin is nil and off has no meaning once the text has been edited.
type Piece struct {
	Text   string
	origin []origin // per byte of text; nil: byte i came from byte off+i
	off    int
	First  bool // begins where the whole input begins
}

// origin is the range of input bytes that one byte of a piece stands for.
type origin struct{ start, end int32 }

// Slice returns the bytes [a, b) of the piece.
func (p Piece) Slice(a, b int) Piece {
	q := Piece{Text: p.Text[a:b], off: p.off + a, First: p.First && a == 0}
	if p.origin != nil {
		q.origin = p.origin[a:b]
	}
	return q
}

// Span returns the input bytes that [a, b) of the piece came from.
func (p Piece) Span(a, b int) Span {
	if p.origin == nil {
		return Span{p.off + a, p.off + b}
	}
	if a >= b {
		return Span{}
	}
	return Span{int(p.origin[a].start), int(p.origin[b-1].end)}
}

func (p Piece) at(i int) origin {
	if p.origin == nil {
		return origin{int32(p.off + i), int32(p.off + i + 1)}
	}
	return p.origin[i]
}

// editor builds the edited copy of a piece from kept and replaced ranges, in order.
type editor struct {
	src    Piece
	track  bool
	out    strings.Builder
	origin []origin
	first  bool
	wrote  bool
}

func edit(p Piece, track bool) *editor {
	e := &editor{src: p, track: track}
	e.out.Grow(len(p.Text) + len(p.Text)/8 + 8)
	return e
}

// keep copies the bytes [a, b) of the source.
func (e *editor) keep(a, b int) {
	if a >= b {
		return
	}

	e.note(a)
	e.out.WriteString(e.src.Text[a:b])

	if e.track {
		for i := a; i < b; i++ {
			e.origin = append(e.origin, e.src.at(i))
		}
	}
}

// put writes s in place of the bytes [a, b) of the source. With a == b the text is new and takes the place of its
// neighbour: the byte at a, or the last one.
func (e *editor) put(s string, a, b int) {
	if s == "" {
		return
	}

	e.note(a)
	e.out.WriteString(s)
	if !e.track {
		return
	}

	var o origin
	switch n := len(e.src.Text); {
	case a < b:
		o = origin{e.src.at(a).start, e.src.at(b - 1).end}
	case a < n:
		o = e.src.at(a)
	case n > 0:
		o = e.src.at(n - 1)
	}

	for range len(s) {
		e.origin = append(e.origin, o)
	}
}

// note remembers whether the first thing written comes from the start of the source.
func (e *editor) note(a int) {
	if !e.wrote {
		e.wrote, e.first = true, e.src.First && a == 0
	}
}

func (e *editor) piece() Piece {
	p := Piece{Text: e.out.String(), off: e.src.off, First: e.first}
	if e.track {
		p.origin = e.origin
		if p.origin == nil {
			p.origin = []origin{}
		}
	}
	return p
}
