package pattern

import (
	"fmt"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
)

// Matcher matches a pattern against one text by backtracking, as the pattern's language is defined by it.
type Matcher struct {
	*Pattern
	s      string
	stack  []frame
	steps  int
	limit  int
	failed [][2]int // by opRun: a stretch of text from every place of which the rest fails
}

// frame is a way not yet taken.
type frame struct {
	pc, pos int32
	low     int32 // opRun: greedy, the least end still to try; lazy, characters that may still be taken
	kind    frameKind
}

type frameKind uint8

const (
	frameJump   frameKind = iota
	frameGreedy           // shorten the run by a character and go on
	frameLazy             // lengthen it
	frameFailed           // every end of the run from low to pos has failed
)

// longRun is the length in bytes from which a failed run is remembered. Patterns such as \s*\n|\s would otherwise walk
// over the same spaces again from each of them.
const longRun = 64

// Over returns a matcher of the text s; Done gives it back.
func (p *Pattern) Over(s string) *Matcher {
	m := p.pool.Get().(*Matcher)
	m.s = s
	m.steps = 0
	m.limit = 1<<20 + 256*len(s)
	clear(m.failed)
	return m
}

// Done ends the use of m.
func (m *Matcher) Done() {
	m.s = ""
	m.pool.Put(m)
}

// Find returns the leftmost match at or after byte from; start < 0: none. It fails with ErrCost.
func (m *Matcher) Find(from int) (start, end int, err error) {
	for i := from; i <= len(m.s); {
		if m.first.has(m.s, i) {
			m.stack = m.stack[:0]
			end, ok := m.run(0, i)
			if m.steps > m.limit {
				return -1, -1, fmt.Errorf("%w: more than %d steps on %d bytes", ErrCost, m.limit, len(m.s))
			}
			if ok {
				return i, end, nil
			}
		}

		if i == len(m.s) {
			break
		}

		i += chars.RuneLen(m.s, i)
	}

	return -1, -1, nil
}

// run matches from instruction pc at byte i up to the opEnd on that level.
func (m *Matcher) run(pc, i int) (end int, ok bool) {
	base := len(m.stack)
	for {
		m.steps++
		if m.steps > m.limit {
			return 0, false
		}

		in := &m.code[pc]
		alive := true
		switch in.op {
		case opEnd:
			m.stack = m.stack[:base]
			return i, true
		case opJump:
			pc = in.alt
			continue
		case opSplit:
			if in.first.has(m.s, i) {
				m.stack = append(m.stack, frame{pc: int32(in.alt), pos: int32(i)})
				pc++
			} else {
				pc = in.alt
			}

			continue
		case opClass:
			i, alive = m.one(in.class, i)
		case opRun:
			i, alive = m.takeRun(in, pc, i)
		case opAssert:
			alive = m.holds(in.assert, i)
		case opLook:
			alive = m.look(in, pc, i)
			pc = in.alt - 1
		case opAtomic:
			i, alive = m.run(pc+1, i)
			pc = in.alt - 1
		}

		pc++
		if !alive {
			if pc, i, ok = m.backtrack(base); !ok {
				return 0, false
			}
		}
	}
}

// one consumes a character of a class.
func (m *Matcher) one(c *class, i int) (int, bool) {
	if i >= len(m.s) {
		return i, false
	}
	if b := m.s[i]; b < utf8.RuneSelf {
		return i + 1, c.ascii[b>>6]>>(b&63)&1 != 0
	}
	r, n := utf8.DecodeRuneInString(m.s[i:])
	return i + n, c.contains(r)
}

// takeRun consumes characters of a class and leaves a frame for the other lengths.
func (m *Matcher) takeRun(in *instruction, pc, i int) (int, bool) {
	if f := m.failed[pc]; i >= f[0] && i < f[1] {
		return i, false
	}

	most := in.max
	if in.kind == lazy {
		most = in.min
	}

	start := i
	low := i
	n := 0
	for ; most < 0 || n < most; n++ {
		if n == in.min {
			low = i
		}

		next, ok := m.one(in.class, i)
		if !ok {
			break
		}
		i = next
	}

	if n == in.min {
		low = i
	}

	m.steps += n >> 2

	switch {
	case n < in.min:
		return i, false
	case in.kind == lazy:
		left := int32(-1)
		if in.max >= 0 {
			left = int32(in.max - in.min)
		}
		m.stack = append(m.stack, frame{int32(pc), int32(i), left, frameLazy})
	case in.kind == greedy && i > low:
		if in.max < 0 && i-start > longRun {
			m.stack = append(m.stack, frame{int32(pc), int32(i), int32(start), frameFailed})
		}
		m.stack = append(m.stack, frame{int32(pc), int32(i), int32(low), frameGreedy})
	}

	return i, true
}

// backtrack takes the newest way not yet taken above base.
func (m *Matcher) backtrack(base int) (pc, i int, ok bool) {
	for len(m.stack) > base {
		m.steps++
		f := &m.stack[len(m.stack)-1]
		pc, i := int(f.pc), int(f.pos)
		switch f.kind {
		case frameGreedy:
			_, n := utf8.DecodeLastRuneInString(m.s[:i])
			i -= n
			if f.pos = int32(i); f.pos <= f.low {
				m.stack = m.stack[:len(m.stack)-1]
			}
			return pc + 1, i, true
		case frameLazy:
			next, fits := m.one(m.code[pc].class, i)
			if !fits || f.low == 0 {
				m.stack = m.stack[:len(m.stack)-1]
				continue
			}

			f.pos, f.low = int32(next), f.low-1
			return pc + 1, next, true
		case frameFailed:
			m.failed[pc] = [2]int{int(f.low), i}
			m.stack = m.stack[:len(m.stack)-1]
			continue
		}

		m.stack = m.stack[:len(m.stack)-1]
		return pc, i, true
	}

	return 0, 0, false
}

// look evaluates a look-around at byte i.
func (m *Matcher) look(in *instruction, pc, i int) bool {
	for range in.back {
		if i == 0 {
			return in.negative
		}
		_, n := utf8.DecodeLastRuneInString(m.s[:i])
		i -= n
	}
	_, ok := m.run(pc+1, i)
	return ok != in.negative
}

func (m *Matcher) holds(kind assertKind, i int) bool {
	s := m.s
	switch kind {
	case textStart:
		return i == 0
	case textEnd:
		return i == len(s)
	case textEndLine:
		return i == len(s) || i == len(s)-1 && s[i] == '\n'
	case lineStart:
		return i == 0 || s[i-1] == '\n' && i < len(s)
	case lineEnd:
		return i == len(s) || s[i] == '\n'
	}

	before, n := utf8.DecodeLastRuneInString(s[:i])
	after, k := utf8.DecodeRuneInString(s[i:])
	edge := (n > 0 && isWordRune(before)) != (k > 0 && isWordRune(after))

	return edge == (kind == wordEdge)
}

// isWordRune is \w outside brackets, which is what edges of words are between.
func isWordRune(r rune) bool {
	return chars.IsPlainWord(r) || r >= 0xB2 && r <= 0xBE && (r <= 0xB3 || r == 0xB9 || r >= 0xBC)
}
