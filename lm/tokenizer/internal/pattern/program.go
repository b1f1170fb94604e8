package pattern

import (
	"fmt"
	"sync"
	"unicode/utf8"
)

// Pattern is a compiled split pattern.
type Pattern struct {
	code  []instruction
	first firstSet // bytes a match can begin with
	pool  sync.Pool
}

type opcode uint8

const (
	opClass  opcode = iota // consume one character of class
	opRun                  // consume min to max characters of class
	opSplit                // go on at the next instruction, or else at alt
	opJump                 // go on at alt
	opAssert               // go on if the assertion holds
	opLook                 // go on at alt if the body that follows matches (or doesn't)
	opAtomic               // match the body that follows and go on at alt behind it
	opEnd                  // a match
)

type instruction struct {
	op       opcode
	kind     repeatKind
	assert   assertKind
	negative bool
	class    *class
	min, max int
	alt      int
	back     int      // opLook: characters to step back first
	first    firstSet // opSplit: bytes that the next instruction can go on with
}

// firstSet is a set of bytes that a match can begin with. Bytes above 0x7F are in or out together.
type firstSet struct {
	ascii  [2]uint64
	beyond bool
	any    bool // unknown, or a match can be empty
}

func (f *firstSet) has(s string, i int) bool {
	if f.any {
		return true
	}
	if i >= len(s) {
		return false
	}
	if b := s[i]; b < utf8.RuneSelf {
		return f.ascii[b>>6]>>(b&63)&1 != 0
	}

	return f.beyond
}

func (f *firstSet) or(g firstSet) {
	f.ascii[0] |= g.ascii[0]
	f.ascii[1] |= g.ascii[1]
	f.beyond = f.beyond || g.beyond
	f.any = f.any || g.any
}

// Compile reads a split pattern in Oniguruma's Ruby syntax: alternatives, groups, greedy, lazy and possessive
// quantifiers, brackets with nesting and &&, properties, anchors, look-ahead, look-behind of fixed length, atomic
// groups, the flags i, m and x. Back-references, recursion and \X, \K, \G are refused with ErrUnsupported.
func Compile(s string) (*Pattern, error) {
	e, err := parsePattern(s)
	if err != nil {
		return nil, err
	}

	p := &Pattern{first: firstOfExpr(e)}
	p.pool.New = func() any { return &Matcher{Pattern: p, failed: make([][2]int, len(p.code))} }
	if err := p.emit(e); err != nil {
		return nil, fmt.Errorf("pattern %q: %w", s, err)
	}

	p.add(instruction{op: opEnd})
	return p, nil
}

// nullable reports whether an expression can match nothing.
func nullable(e expr) bool {
	switch e := e.(type) {
	case oneOf:
		return false
	case sequence:
		for _, x := range e.parts {
			if !nullable(x) {
				return false
			}
		}
	case choice:
		for _, x := range e.options {
			if nullable(x) {
				return true
			}
		}
		return false
	case repeated:
		return e.min == 0 || nullable(e.body)
	case atomic:
		return nullable(e.body)
	}

	return true
}

// firstOfExpr returns the bytes that an expression can begin with.
func firstOfExpr(e expr) firstSet {
	switch e := e.(type) {
	case oneOf:
		return firstSet{ascii: e.class.ascii, beyond: e.class.beyondASCII()}
	case sequence:
		f := firstSet{}
		for _, x := range e.parts {
			if l, ok := x.(look); ok && !l.behind && !l.negative {
				continue // what follows says as much
			}

			if !nullable(x) {
				f.or(firstOfExpr(x))
				return f
			}

			r, ok := x.(repeated)
			if !ok {
				break
			}

			f.or(firstOfExpr(r.body))
		}
	case choice:
		f := firstSet{}
		for _, x := range e.options {
			f.or(firstOfExpr(x))
		}
		return f
	case repeated:
		f := firstOfExpr(e.body)
		f.any = f.any || e.min == 0
		return f
	case atomic:
		return firstOfExpr(e.body)
	}

	return firstSet{any: true}
}

func (p *Pattern) add(in instruction) int {
	p.code = append(p.code, in)
	return len(p.code) - 1
}

func (p *Pattern) emit(e expr) error {
	if len(p.code) > maxProgram {
		return fmt.Errorf("%w: too large", ErrUnsupported)
	}

	switch e := e.(type) {
	case oneOf:
		p.add(instruction{op: opClass, class: e.class})
	case sequence:
		for _, x := range e.parts {
			if err := p.emit(x); err != nil {
				return err
			}
		}
	case choice:
		return p.emitChoice(e)
	case repeated:
		return p.emitRepeat(e)
	case atomic:
		return p.emitAtomic(e.body)
	case look:
		return p.emitLook(e)
	case assertion:
		p.add(instruction{op: opAssert, assert: assertKind(e)})
	}

	return nil
}

func (p *Pattern) emitChoice(e choice) error {
	var ends []int
	for i, x := range e.options {
		split := -1
		if i < len(e.options)-1 {
			split = p.add(instruction{op: opSplit, first: firstOfExpr(x)})
		}
		if err := p.emit(x); err != nil {
			return err
		}

		if split >= 0 {
			ends = append(ends, p.add(instruction{op: opJump}))
			p.code[split].alt = len(p.code)
		}
	}

	for _, i := range ends {
		p.code[i].alt = len(p.code)
	}

	return nil
}

func (p *Pattern) emitRepeat(e repeated) error {
	if c, ok := e.body.(oneOf); ok {
		p.add(instruction{op: opRun, class: c.class, min: e.min, max: e.max, kind: e.kind})
		return nil
	}

	if e.kind == possessive {
		return p.emitAtomic(repeated{e.body, e.min, e.max, greedy})
	}

	for range e.min {
		if err := p.emit(e.body); err != nil {
			return err
		}
	}

	if e.max < 0 {
		return p.emitLoop(e)
	}

	var exits []int
	for range e.max - e.min {
		exits = append(exits, p.addOption(e))
		if err := p.emit(e.body); err != nil {
			return err
		}
	}

	p.close(exits, e.kind)
	return nil
}

// emitLoop adds body* as: split, body, jump back.
func (p *Pattern) emitLoop(e repeated) error {
	start := p.addOption(e)
	if err := p.emit(e.body); err != nil {
		return err
	}
	p.add(instruction{op: opJump, alt: start})
	p.close([]int{start}, e.kind)
	return nil
}

// addOption adds the split in front of an optional body; a lazy one tries the other way first, by a jump over it.
func (p *Pattern) addOption(e repeated) int {
	at := p.add(instruction{op: opSplit, first: firstOfExpr(e.body)})
	if e.kind == lazy {
		p.code[at] = instruction{op: opSplit, first: firstSet{any: true}, alt: at + 2}
		p.add(instruction{op: opJump})
	}
	return at
}

// close points the exits of optional bodies at the end of the program.
func (p *Pattern) close(exits []int, kind repeatKind) {
	for _, i := range exits {
		if kind == lazy {
			i++
		}
		p.code[i].alt = len(p.code)
	}
}

func (p *Pattern) emitAtomic(body expr) error {
	at := p.add(instruction{op: opAtomic})
	return p.emitBody(at, body)
}

// emitBody adds a body with an end of its own behind instruction at, which goes on after it.
func (p *Pattern) emitBody(at int, body expr) error {
	if err := p.emit(body); err != nil {
		return err
	}
	p.add(instruction{op: opEnd})
	p.code[at].alt = len(p.code)
	return nil
}

// emitLook adds a look-around. Looking behind steps back by the length of the body; alternatives of different lengths
// become looks of their own.
func (p *Pattern) emitLook(e look) error {
	if !e.behind {
		return p.emitBody(p.add(instruction{op: opLook, negative: e.negative}), e.body)
	}

	options := []expr{e.body}
	if c, ok := e.body.(choice); ok {
		options = c.options
	}

	if !e.negative && len(options) > 1 {
		c := choice{}
		for _, x := range options {
			c.options = append(c.options, look{body: x, behind: true})
		}
		return p.emit(c)
	}

	for _, x := range options {
		n, ok := fixedSize(x)
		if !ok {
			return fmt.Errorf("%w: look-behind of varying length", ErrUnsupported)
		}

		at := p.add(instruction{op: opLook, negative: e.negative, back: n})
		if err := p.emitBody(at, x); err != nil {
			return err
		}
	}

	return nil
}

// fixedSize returns the number of characters an expression matches, if it is always the same.
func fixedSize(e expr) (int, bool) {
	switch e := e.(type) {
	case oneOf:
		return 1, true
	case sequence:
		total := 0
		for _, x := range e.parts {
			n, ok := fixedSize(x)
			if !ok {
				return 0, false
			}
			total += n
		}

		return total, true
	case choice:
		size, ok := fixedSize(e.options[0])
		for _, x := range e.options[1:] {
			n, same := fixedSize(x)
			ok = ok && same && n == size
		}
		return size, ok
	case repeated:
		n, ok := fixedSize(e.body)
		return n * e.min, ok && e.min == e.max
	case atomic:
		return fixedSize(e.body)
	}

	return 0, true // assertions and look-arounds
}
