package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// newBertSplit cuts at white space, which goes, and around punctuation.
func newBertSplit(*node) splitter { return bertSplit{} }

type bertSplit struct{}

func (bertSplit) split(_ *encoder, p piece, emit func(piece) error) error {
	from := 0
	for i := 0; i <= len(p.text); {
		r, n := rune(' '), 1
		if i < len(p.text) {
			r, n = utf8.DecodeRuneInString(p.text[i:])
		}
		space := isSpace(r)
		if !space && !isPunctuation(r) {
			i += n
			continue
		}
		if from < i {
			if err := emit(p.slice(from, i)); err != nil {
				return err
			}
		}
		if !space {
			if err := emit(p.slice(i, i+n)); err != nil {
				return err
			}
		}
		i += n
		from = i
	}
	return nil
}

// isPunctuation is true for ASCII punctuation and symbols and for the Unicode categories P*.
func isPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return r > ' ' && r < 0x7F && scanASCII[r] == scanOther
	}
	return classOf(r)&setP != 0 && !unicode.Is(latePunctuation, r) || r == 0x166D || r == 0x111C9
}

func newPunctuation(n *node) splitter {
	return &matchSplit{find: oneRune(isPunctuation), how: readBehavior(n, "Isolated")}
}

func newDigits(n *node) splitter {
	how := contiguous
	if n.flag("individual_digits", false) {
		how = isolated
	}
	return &matchSplit{find: oneRune(func(r rune) bool {
		if r < utf8.RuneSelf {
			return r >= '0' && r <= '9'
		}
		return classOf(r)&setN != 0
	}), how: how}
}

func newDelimiterSplit(n *node) splitter {
	return &matchSplit{find: literal(string(n.char("delimiter", ' '))), how: removed}
}

// literal finds a string; the empty one is never found.
type literal string

func (l literal) over(s string) search {
	return findFunc(func(s string, from int) (int, int) {
		i := -1
		if l != "" {
			i = strings.Index(s[from:], string(l))
		}
		if i < 0 {
			return -1, -1
		}
		return from + i, from + i + len(l)
	}).over(s)
}

// fixedLength cuts every so many characters.
type fixedLength int64

func (f fixedLength) split(_ *encoder, p piece, emit func(piece) error) error {
	from, n := 0, int64(0)
	for i := range p.text {
		if n == int64(f) {
			if err := emit(p.slice(from, i)); err != nil {
				return err
			}
			from, n = i, 0
		}
		n++
	}
	if from < len(p.text) {
		return emit(p.slice(from, len(p.text)))
	}
	return nil
}

// metaspace writes a mark for every space, puts one in front, and cuts before each.
type metaspace struct {
	mark   string
	scheme prependScheme
	cut    bool
}

type prependScheme uint8

const (
	prependAlways prependScheme = iota
	prependNever
	prependFirst // only where the input begins
)

func prependSchemes() map[string]prependScheme {
	return map[string]prependScheme{"always": prependAlways, "never": prependNever, "first": prependFirst}
}

// readPrepend reads prepend_scheme, or the older add_prefix_space.
func readPrepend(n *node) prependScheme {
	name := n.text("prepend_scheme", "always")
	scheme, ok := prependSchemes()[name]
	if !ok {
		n.fail(unknown(name, prependSchemes()), "prepend_scheme")
	}
	if !n.flag("add_prefix_space", true) {
		scheme = prependNever
	}
	return scheme
}

func newMetaspace(n *node) splitter {
	return &metaspace{string(n.char("replacement", '▁')), readPrepend(n), n.flag("split", true)}
}

func (m *metaspace) split(x *encoder, p piece, emit func(piece) error) error {
	p = m.mark1(x, p)
	if !m.cut {
		return emit(p)
	}
	for from := 0; from < len(p.text); {
		end := len(p.text)
		if i := strings.Index(p.text[from+1:], m.mark); i >= 0 {
			end = from + 1 + i
		}
		if err := emit(p.slice(from, end)); err != nil {
			return err
		}
		from = end
	}
	return nil
}

// mark1 replaces the spaces and adds the first mark.
func (m *metaspace) mark1(x *encoder, p piece) piece {
	e := edit(p, x.track)
	front := m.scheme == prependAlways || m.scheme == prependFirst && p.first
	if front && !strings.HasPrefix(p.text, m.mark) && !strings.HasPrefix(p.text, " ") {
		e.put(m.mark, 0, 0)
	}
	replaceAll(e, " ", m.mark)
	return e.piece()
}

// replaceAll copies the source with every old replaced.
func replaceAll(e *editor, old, with string) {
	s := e.src.text
	from := 0
	for {
		i := strings.Index(s[from:], old)
		if i < 0 {
			break
		}
		e.keep(from, from+i)
		e.put(with, from+i, from+i+len(old))
		from += i + len(old)
	}
	e.keep(from, len(s))
}

// byteLevelSplit maps every byte to a printable character, after splitting by the pattern of GPT-2.
type byteLevelSplit struct {
	prefix bool // a space goes in front of a piece that has none
	regex  bool
	raw    bool // the model reads bytes: leave them as they are
}

func newByteLevelSplit(n *node) splitter {
	return &byteLevelSplit{prefix: n.flag("add_prefix_space", true), regex: n.flag("use_regex", true)}
}

func (b *byteLevelSplit) split(x *encoder, p piece, emit func(piece) error) error {
	if b.prefix && !strings.HasPrefix(p.text, " ") {
		e := edit(p, x.track)
		e.put(" ", 0, 0)
		e.keep(0, len(p.text))
		p = e.piece()
	}
	if !b.raw {
		next := emit
		emit = func(p piece) error { return next(mapBytes(p, x.track)) }
	}
	if !b.regex {
		return emit(p)
	}
	return scanSplit(scanGPT2).split(x, p, emit)
}

// byteRunes returns the printable character that stands for each byte in byte-level vocabularies: the byte itself
// where it is printable Latin-1, otherwise the next one from U+0100 on.
func byteRunes() (t [256]rune) {
	next := rune(256)
	for b := range t {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			t[b] = rune(b)
			continue
		}
		t[b] = next
		next++
	}
	return t
}

// byteStrings is byteRunes as strings.
var byteStrings = func() (t [256]string) {
	for b, r := range byteRunes() {
		t[b] = string(r)
	}
	return t
}()

// runeBytes is the inverse of byteRunes; -1: no byte.
var runeBytes = func() (t [512]int16) {
	for i := range t {
		t[i] = -1
	}
	for b, r := range byteRunes() {
		t[r] = int16(b)
	}
	return t
}()

// mapBytes writes every byte as its printable character.
func mapBytes(p piece, track bool) piece {
	e := edit(p, track)
	for i := 0; i < len(p.text); {
		n := runeLen(p.text, i)
		for k := i; k < i+n; k++ {
			e.put(byteStrings[p.text[k]], i, i+n)
		}
		i += n
	}
	return e.piece()
}

// unmapText turns the printable characters of a token into bytes; false when one of them stands for none.
func unmapText(s string) (string, bool) {
	buf := make([]byte, 0, len(s))
	for _, r := range s {
		if r >= 512 || runeBytes[r] < 0 {
			return "", false
		}
		buf = append(buf, byte(runeBytes[r]))
	}
	return string(buf), true
}

// unmapKeys returns a vocabulary by the bytes of its tokens.
func unmapKeys(ids map[string]int32) map[string]int32 {
	out := make(map[string]int32, len(ids))
	for s, id := range ids {
		if raw, ok := unmapText(s); ok {
			out[raw] = id
		}
	}
	return out
}
