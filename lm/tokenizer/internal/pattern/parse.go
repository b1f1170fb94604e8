package pattern

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The syntax tree of a pattern.
type (
	// expr is one node of it.
	expr     any
	oneOf    struct{ class *class }   // a character
	sequence struct{ parts []expr }   // one after the other
	choice   struct{ options []expr } // the first that leads to a match
	repeated struct {
		body     expr
		min, max int // max < 0: no limit
		kind     repeatKind
	}
	atomic struct{ body expr } // the first match of the body counts, no other is tried
	look   struct {
		body     expr
		behind   bool
		negative bool
	}
	assertion assertKind
)

type repeatKind uint8

const (
	greedy repeatKind = iota
	lazy
	possessive
)

type assertKind uint8

const (
	lineStart assertKind = iota
	lineEnd
	textStart
	textEnd
	textEndLine // before a newline at the end, or at the end
	wordEdge
	notWordEdge
)

// Limits on patterns.
const (
	maxSource  = 1 << 14 // bytes of the text
	maxRepeat  = 1000    // count in {n,m}
	maxProgram = 1 << 14 // instructions
)

// parser reads Oniguruma's Ruby syntax.
type parser struct {
	s     string
	i     int
	depth int
	flags flags
	rest  bool // flags for the rest of a group were just read
}

type flags struct{ fold, dotAll, extended bool }

func (p *parser) fail(what string) error {
	return fmt.Errorf("%w: pattern %q: %s at byte %d", ErrUnsupported, p.s, what, p.i)
}

func parsePattern(s string) (expr, error) {
	if len(s) > maxSource {
		return nil, fmt.Errorf("%w: pattern of %d bytes, at most %d", ErrUnsupported, len(s), maxSource)
	}
	p := &parser{s: s}
	e, err := p.alternatives()
	if err == nil && p.i < len(p.s) {
		err = p.fail("unmatched )")
	}
	return e, err
}

func (p *parser) more() bool { return p.i < len(p.s) }

func (p *parser) accept(s string) bool {
	if strings.HasPrefix(p.s[p.i:], s) {
		p.i += len(s)
		return true
	}
	return false
}

func (p *parser) rune() rune {
	r, n := utf8.DecodeRuneInString(p.s[p.i:])
	p.i += n
	return r
}

// alternatives reads a|b|c up to a closing bracket or the end. Flags set inside hold to the end of the group.
func (p *parser) alternatives() (expr, error) {
	p.depth++
	if p.depth > maxDepth {
		return nil, p.fail("groups nested too deeply")
	}
	defer func(f flags) { p.depth--; p.flags = f }(p.flags)

	var options []expr
	for {
		e, err := p.concatenation()
		if err != nil {
			return nil, err
		}

		options = append(options, e)
		if !p.accept("|") {
			break
		}
	}

	if len(options) == 1 {
		return options[0], nil
	}

	return choice{options}, nil
}

func (p *parser) concatenation() (expr, error) {
	var parts []expr
	for p.more() && p.s[p.i] != '|' && p.s[p.i] != ')' {
		if p.flags.extended && p.skipComment() {
			continue
		}

		e, err := p.atom()
		if err != nil {
			return nil, err
		}

		if e == nil {
			continue
		}
		if e, err = p.quantified(e); err != nil {
			return nil, err
		}

		parts = append(parts, e)
	}

	if len(parts) == 1 {
		return parts[0], nil
	}

	return sequence{parts}, nil
}

// skipComment passes over white space and comments of the extended syntax.
func (p *parser) skipComment() bool {
	switch p.s[p.i] {
	case ' ', '\t', '\n', '\r', '\f', '\v':
		p.i++
		return true
	case '#':
		for p.more() && p.s[p.i] != '\n' {
			p.i++
		}
		return true
	}

	return false
}

// quantified reads the quantifiers behind an atom.
func (p *parser) quantified(e expr) (expr, error) {
	for p.more() {
		low, high, braces, ok := p.quantifier()
		if !ok {
			return e, nil
		}

		if low > maxRepeat || high > maxRepeat || high >= 0 && high < low {
			return nil, p.fail("repeat count out of range")
		}

		r := repeated{body: e, min: low, max: high}
		switch {
		case p.accept("?"):
			r.kind = lazy
		case !braces && p.accept("+"):
			r.kind = possessive
		}

		if nullable(e) && high != 1 {
			return nil, p.fail("a repeated group that can match nothing")
		}

		e = r
	}

	return e, nil
}

func (p *parser) quantifier() (low, high int, braces, ok bool) {
	switch p.s[p.i] {
	case '?':
		low = 0
		high = 1
		ok = true
	case '*':
		low = 0
		high = -1
		ok = true
	case '+':
		low = 1
		high = -1
		ok = true
	case '{':
		return p.braces()
	}
	if ok {
		p.i++
	}

	return low, high, false, ok
}

// braces reads {n}, {n,}, {,m} or {n,m}; anything else in braces is plain text.
func (p *parser) braces() (low, high int, braces, ok bool) {
	end := strings.IndexByte(p.s[p.i:], '}')
	if end < 0 {
		return 0, 0, true, false
	}

	first, last, comma := strings.Cut(p.s[p.i+1:p.i+end], ",")
	if first == "" && last == "" {
		return 0, 0, true, false
	}

	low, high = 0, -1
	var err error
	if first != "" {
		if low, err = parseCount(first); err != nil {
			return 0, 0, true, false
		}
	}

	if !comma {
		high = low
	} else if last != "" {
		if high, err = parseCount(last); err != nil {
			return 0, 0, true, false
		}
	}

	p.i += end + 1
	return low, high, true, true
}

// parseCount reads digits; a count beyond the limit comes back as one that is.
func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err
}

// atom reads one part without its quantifier; nil for one that stands for nothing (flags, comments).
func (p *parser) atom() (expr, error) {
	switch p.s[p.i] {
	case '(':
		return p.group()
	case '[':
		c, err := p.bracket()
		if err != nil {
			return nil, err
		}
		return p.one(c), nil
	case '\\':
		return p.escape()
	case '.':
		p.i++
		if p.flags.dotAll {
			return p.one(rangeClass(0, utf8.MaxRune)), nil
		}
		return p.one(rangeClass('\n', '\n').negated()), nil
	case '^':
		p.i++
		return assertion(lineStart), nil
	case '$':
		p.i++
		return assertion(lineEnd), nil
	case '*', '+', '?':
		return nil, p.fail("nothing to repeat")
	}

	r := p.rune()
	return p.one(rangeClass(r, r)), nil
}

// one makes a character of a class, in either case where the flags say so.
func (p *parser) one(c *class) expr {
	c.fold = p.flags.fold
	return oneOf{c.seal()}
}

func (p *parser) group() (expr, error) {
	p.i++
	var wrap func(expr) expr
	if p.accept("?") {
		var skip bool
		var err error
		if wrap, skip, err = p.groupKind(); err != nil || skip {
			return nil, err
		}

		if wrap == nil && p.rest {
			p.rest = false
			return p.alternatives() // (?i) holds for all that follows in the group around it, which a|b then divides
		}
	}

	body, err := p.alternatives()
	if err != nil {
		return nil, err
	}

	if !p.accept(")") {
		return nil, p.fail("missing )")
	}
	if wrap != nil {
		body = wrap(body)
	}

	return body, nil
}

// groupKind reads what follows "(?"; skip: the group is complete and stands for nothing.
func (p *parser) groupKind() (wrap func(expr) expr, skip bool, err error) {
	switch {
	case p.accept(":"):
		return nil, false, nil
	case p.accept(">"):
		return func(e expr) expr { return atomic{e} }, false, nil
	case p.accept("="):
		return func(e expr) expr { return look{body: e} }, false, nil
	case p.accept("!"):
		return func(e expr) expr { return look{body: e, negative: true} }, false, nil
	case p.accept("<="):
		return func(e expr) expr { return look{body: e, behind: true} }, false, nil
	case p.accept("<!"):
		return func(e expr) expr { return look{body: e, behind: true, negative: true} }, false, nil
	case p.accept("<"):
		end := strings.IndexByte(p.s[p.i:], '>')
		if end < 0 {
			return nil, false, p.fail("missing >")
		}
		p.i += end + 1
		return nil, false, nil
	case p.accept("#"):
		end := strings.IndexByte(p.s[p.i:], ')')
		if end < 0 {
			return nil, false, p.fail("missing )")
		}
		p.i += end + 1
		return nil, true, nil
	}

	return p.groupFlags()
}

// groupFlags reads the flags of (?i) and (?i:…). Without a colon they hold to the end of the group around, and rest is
// set.
func (p *parser) groupFlags() (wrap func(expr) expr, skip bool, err error) {
	outer := p.flags
	on := true
	for p.more() {
		c := p.s[p.i]
		p.i++
		switch c {
		case '-':
			on = false
		case 'i':
			p.flags.fold = on
		case 'm':
			p.flags.dotAll = on
		case 'x':
			p.flags.extended = on
		case ')':
			p.rest = true
			return nil, false, nil
		case ':':
			return func(e expr) expr { p.flags = outer; return e }, false, nil
		default:
			p.i--
			return nil, false, p.fail("unknown group")
		}
	}

	return nil, false, p.fail("missing )")
}

// escape reads a backslash and what follows outside brackets.
func (p *parser) escape() (expr, error) {
	if p.i+1 >= len(p.s) {
		return nil, p.fail("trailing backslash")
	}

	asserts := map[byte]assertKind{'A': textStart, 'z': textEnd, 'Z': textEndLine, 'b': wordEdge, 'B': notWordEdge}
	letter := p.s[p.i+1]
	if kind, ok := asserts[letter]; ok {
		p.i += 2
		return assertion(kind), nil
	}

	if letter == 'R' {
		p.i += 2
		crlf := sequence{[]expr{p.one(rangeClass('\r', '\r')), p.one(rangeClass('\n', '\n'))}}
		return atomic{choice{[]expr{crlf, p.one(rangeClass('\n', '\r', 0x85, 0x85, 0x2028, 0x2029))}}}, nil
	}

	c, r, err := p.classEscape()
	if err != nil {
		return nil, err
	}

	switch {
	case c == nil:
		c = rangeClass(r, r)
	case c.isWord():
		c = c.withLatinDigits()
	}

	return p.one(c), nil
}

// classEscape reads an escape that is legal in brackets too: a class, or a single character with a nil class.
func (p *parser) classEscape() (*class, rune, error) {
	p.i++
	if !p.more() {
		return nil, 0, p.fail("trailing backslash")
	}

	letter := p.s[p.i]
	if c := shorthand(letter); c != nil && letter < utf8.RuneSelf {
		p.i++
		return c, 0, nil
	}

	switch {
	case letter == 'p' || letter == 'P':
		c, err := p.propertyEscape()
		return c, 0, err
	case letter == 'x' || letter == 'u':
		r, err := p.hexEscape()
		return nil, r, err
	case letter >= '1' && letter <= '9', letter == 'k', letter == 'g', letter == 'G', letter == 'K', letter == 'X',
		letter == 'c', letter == 'C', letter == 'M', letter == 'y', letter == 'Y', letter == 'N', letter == 'O':
		return nil, 0, p.fail("escape \\" + string(rune(letter)))
	}

	if i := strings.IndexByte("abefnrtv0", letter); i >= 0 {
		p.i++
		return nil, rune("\a\b\x1b\f\n\r\t\v\x00"[i]), nil
	}

	return nil, p.rune(), nil
}

func (p *parser) propertyEscape() (*class, error) {
	negative := p.s[p.i] == 'P'
	p.i++
	if !p.accept("{") {
		return nil, p.fail("property without {}")
	}

	end := strings.IndexByte(p.s[p.i:], '}')
	if end < 0 {
		return nil, p.fail("missing }")
	}

	name := p.s[p.i : p.i+end]
	if rest, ok := strings.CutPrefix(name, "^"); ok {
		negative, name = !negative, rest
	}

	c, err := property(name)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", p.s, err)
	}

	p.i += end + 1
	if negative {
		c = c.negated()
	}

	return c, nil
}

// hexEscape reads \xHH, \x{H…} or \uHHHH.
func (p *parser) hexEscape() (rune, error) {
	digits := p.s[p.i+1:]
	size := 2
	if p.s[p.i] == 'u' {
		size = 4
	}

	p.i++
	if strings.HasPrefix(digits, "{") {
		end := strings.IndexByte(digits, '}')
		if end < 0 {
			return 0, p.fail("missing }")
		}
		digits, size = digits[1:end], end+1
	} else if len(digits) < size {
		return 0, p.fail("short escape")
	} else {
		digits = digits[:size]
	}

	v, err := strconv.ParseUint(digits, 16, 21)
	if err != nil || v > utf8.MaxRune {
		return 0, p.fail("bad character code")
	}

	p.i += size
	return rune(v), nil
}
