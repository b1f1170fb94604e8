package pattern

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
)

// class is a set of characters in a pattern: a union of categories, ranges, tables and other classes, perhaps cut by
// others, perhaps negated. Negation comes last.
type class struct {
	ascii  [2]uint64 // the answer for ASCII; filled by seal
	set    chars.Set
	ranges []rune // pairs: first, last
	tables []*unicode.RangeTable
	union  []*class
	and    []*class
	fold   bool // letters match in either case
	neg    bool
}

// seal computes the answers for ASCII; the class doesn't change afterwards.
func (c *class) seal() *class {
	for r := range rune(utf8.RuneSelf) {
		if c.contains(r) {
			c.ascii[r>>6] |= 1 << (r & 63)
		}
	}
	return c
}

// contains reports whether the class holds r.
func (c *class) contains(r rune) bool {
	in := c.holds(r)
	if c.fold && !in {
		for f := unicode.SimpleFold(r); f != r && !in; f = unicode.SimpleFold(f) {
			in = c.holds(f)
		}
	}
	return in != c.neg
}

func (c *class) holds(r rune) bool {
	if !c.member(r) {
		return false
	}
	for _, a := range c.and {
		if !a.contains(r) {
			return false
		}
	}
	return true
}

func (c *class) member(r rune) bool {
	if c.set != 0 && c.set&chars.Of(r) != 0 {
		return true
	}

	for i := 0; i < len(c.ranges); i += 2 {
		if r >= c.ranges[i] && r <= c.ranges[i+1] {
			return true
		}
	}

	for _, t := range c.tables {
		if unicode.Is(t, r) {
			return true
		}
	}

	for _, u := range c.union {
		if u.contains(r) {
			return true
		}
	}

	return false
}

// beyondASCII reports whether the class may hold characters that are not ASCII.
func (c *class) beyondASCII() bool {
	if c.neg || c.set != 0 || len(c.tables) > 0 || len(c.union) > 0 || c.fold {
		return true
	}
	for i := 1; i < len(c.ranges); i += 2 {
		if c.ranges[i] >= utf8.RuneSelf {
			return true
		}
	}
	return false
}

func rangeClass(pairs ...rune) *class { return &class{ranges: pairs} }

// wordClass is \w of Oniguruma within brackets.
func wordClass() *class {
	return &class{
		set:    chars.L | chars.M | chars.Nd | chars.Nl | chars.Pc,
		tables: []*unicode.RangeTable{unicode.Other_Alphabetic},
	}
}

// latinDigits are ² ³ ¹ ¼ ½ ¾, which Oniguruma counts as parts of words where \w or \p{Word} stands outside brackets,
// for characters up to U+00FF are looked up in another table there.
func latinDigits() []rune { return []rune{0xB2, 0xB3, 0xB9, 0xB9, 0xBC, 0xBE} }

// isWord reports whether a class is that of words, or its complement.
func (c *class) isWord() bool {
	if len(c.union) == 1 && c.set == 0 {
		return c.union[0].isWord()
	}
	return c.set == wordClass().set && len(c.tables) == 1 && c.tables[0] == unicode.Other_Alphabetic
}

// withLatinDigits is a class of words, or its complement, as it counts outside brackets.
func (c *class) withLatinDigits() *class {
	out := *c
	if len(c.union) == 1 {
		out.union = []*class{c.union[0].withLatinDigits()}
		return &out
	}
	out.ranges = latinDigits()
	return &out
}

// negated returns the complement of a class.
func (c *class) negated() *class { return &class{union: []*class{c}, neg: true} }

// shorthand returns the class of \d, \w, \s, \h and their complements; nil for another letter.
func shorthand(letter byte) *class {
	var c *class
	switch letter | 0x20 {
	case 'd':
		c = &class{set: chars.Nd}
	case 'w':
		c = wordClass()
	case 's':
		c = &class{set: chars.Space}
	case 'h':
		c = rangeClass('0', '9', 'a', 'f', 'A', 'F')
	default:
		return nil
	}

	if letter < 'a' {
		return c.negated()
	}

	return c
}

// namedClasses are the POSIX brackets, which are properties too.
func namedClasses() map[string]*class {
	alphabetic := &class{set: chars.L | chars.Nl, tables: []*unicode.RangeTable{unicode.Other_Alphabetic}}
	return map[string]*class{
		"alpha": alphabetic, "alphabetic": alphabetic, "digit": {set: chars.Nd},
		"alnum": {set: chars.Nd, union: []*class{alphabetic}},
		"upper": {set: chars.Lu, tables: []*unicode.RangeTable{unicode.Other_Uppercase}},
		"lower": {set: chars.Ll, tables: []*unicode.RangeTable{unicode.Other_Lowercase}},
		"space": {set: chars.Space}, "blank": {set: chars.Zs, ranges: []rune{'\t', '\t'}},
		"punct": {set: chars.P | chars.S}, "cntrl": {set: chars.Controls}, "xdigit": shorthand('h'),
		"word":  wordClass(),
		"graph": {set: chars.Space | chars.Controls | chars.Cs | chars.Cn, neg: true},
		"print": {set: chars.Controls | chars.Cs | chars.Cn | chars.Zl | chars.Zp, neg: true},
		"ascii": rangeClass(0, 0x7F), "any": rangeClass(0, unicode.MaxRune),
		"letter": {set: chars.L}, "mark": {set: chars.M}, "number": {set: chars.N}, "punctuation": {set: chars.P},
		"symbol": {set: chars.S}, "separator": {set: chars.Z}, "other": {set: chars.C},
		"uppercaseletter": {set: chars.Lu},
		"lowercaseletter": {set: chars.Ll}, "decimalnumber": {set: chars.Nd}, "whitespace": {set: chars.Space},
	}
}

// property returns the class of \p{name}: a general category, a script, a property or a POSIX name.
func property(name string) (*class, error) {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", " ", "", "-", "").Replace(s))
	}
	key := plain(name)
	for k, set := range chars.Categories() {
		if plain(k) == key {
			return &class{set: set}, nil
		}
	}

	if c := namedClasses()[key]; c != nil {
		return c, nil
	}

	for _, tables := range []map[string]*unicode.RangeTable{unicode.Scripts, unicode.Properties} {
		for k, t := range tables {
			if plain(k) == key {
				return &class{tables: []*unicode.RangeTable{t}}, nil
			}
		}
	}

	return nil, fmt.Errorf("%w: character property %q", ErrUnsupported, name)
}
