package prepare

import (
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
)

// newBertSplit cuts at white space, which goes, and around punctuation.
func newBertSplit(*config.Node) Splitter { return bertSplit{} }

type bertSplit struct{}

// Split implements Splitter.
func (bertSplit) Split(p Piece, _ bool, emit func(Piece) error) error {
	from := 0
	for i := 0; i <= len(p.Text); {
		r, n := rune(' '), 1
		if i < len(p.Text) {
			r, n = utf8.DecodeRuneInString(p.Text[i:])
		}

		space := chars.IsSpace(r)
		if !space && !chars.IsPunctuation(r) {
			i += n
			continue
		}

		if from < i {
			if err := emit(p.Slice(from, i)); err != nil {
				return err
			}
		}

		if !space {
			if err := emit(p.Slice(i, i+n)); err != nil {
				return err
			}
		}

		i += n
		from = i
	}

	return nil
}

func newPunctuation(n *config.Node) Splitter {
	return &matchSplit{find: oneRune(chars.IsPunctuation), how: readBehavior(n, "Isolated")}
}

func newDigits(n *config.Node) Splitter {
	how := contiguous
	if n.Flag("individual_digits", false) {
		how = isolated
	}

	return &matchSplit{find: oneRune(func(r rune) bool {
		if r < utf8.RuneSelf {
			return r >= '0' && r <= '9'
		}
		return chars.Of(r)&chars.N != 0
	}), how: how}
}

func newDelimiterSplit(n *config.Node) Splitter {
	return &matchSplit{find: literal(string(n.Char("delimiter", ' '))), how: removed}
}

// literal finds a text; the empty one is never found.
func literal(text string) finder {
	return findFunc(func(s string, from int) (int, int) {
		i := -1
		if text != "" {
			i = strings.Index(s[from:], text)
		}
		if i < 0 {
			return -1, -1
		}
		return from + i, from + i + len(text)
	})
}

// fixedLength cuts every so many characters.
type fixedLength int64

// Split implements Splitter.
func (f fixedLength) Split(p Piece, _ bool, emit func(Piece) error) error {
	from, n := 0, int64(0)
	for i := range p.Text {
		if n == int64(f) {
			if err := emit(p.Slice(from, i)); err != nil {
				return err
			}
			from, n = i, 0
		}

		n++
	}

	if from < len(p.Text) {
		return emit(p.Slice(from, len(p.Text)))
	}

	return nil
}

// metaspace writes a mark for every space, puts one in front, and cuts before each.
type metaspace struct {
	mark   string
	scheme PrependScheme
	cut    bool
}

// PrependScheme says where Metaspace puts a mark in front.
type PrependScheme uint8

// The schemes.
const (
	PrependAlways PrependScheme = iota // before every piece
	PrependNever
	PrependFirst // only where the input begins
)

func prependSchemes() map[string]PrependScheme {
	return map[string]PrependScheme{"always": PrependAlways, "never": PrependNever, "first": PrependFirst}
}

// ReadPrepend reads prepend_scheme, or the older add_prefix_space.
func ReadPrepend(n *config.Node) PrependScheme {
	name := n.Text("prepend_scheme", "always")
	scheme, ok := prependSchemes()[name]
	if !ok {
		n.Fail(config.Unknown(name, prependSchemes()), "prepend_scheme")
	}
	if !n.Flag("add_prefix_space", true) {
		scheme = PrependNever
	}
	return scheme
}

func newMetaspace(n *config.Node) Splitter {
	return &metaspace{string(n.Char("replacement", '▁')), ReadPrepend(n), n.Flag("split", true)}
}

// Split implements Splitter.
func (m *metaspace) Split(p Piece, track bool, emit func(Piece) error) error {
	p = m.mark1(p, track)
	if !m.cut {
		return emit(p)
	}

	for from := 0; from < len(p.Text); {
		end := len(p.Text)
		if i := strings.Index(p.Text[from+1:], m.mark); i >= 0 {
			end = from + 1 + i
		}
		if err := emit(p.Slice(from, end)); err != nil {
			return err
		}

		from = end
	}

	return nil
}

// mark1 replaces the spaces and adds the first mark.
func (m *metaspace) mark1(p Piece, track bool) Piece {
	e := edit(p, track)
	front := m.scheme == PrependAlways || m.scheme == PrependFirst && p.First
	if front && !strings.HasPrefix(p.Text, m.mark) && !strings.HasPrefix(p.Text, " ") {
		e.put(m.mark, 0, 0)
	}
	replaceAll(e, " ", m.mark)
	return e.piece()
}

// replaceAll copies the source with every old replaced.
func replaceAll(e *editor, old, with string) {
	s := e.src.Text
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

// ByteLevel maps every byte to a printable character, after splitting by the pattern of GPT-2.
type ByteLevel struct {
	prefix bool // a space goes in front of a piece that has none
	regex  bool
	Raw    bool // the model reads bytes: leave them as they are
}

func newByteLevelSplit(n *config.Node) Splitter {
	return &ByteLevel{prefix: n.Flag("add_prefix_space", true), regex: n.Flag("use_regex", true)}
}

// Split implements Splitter.
func (b *ByteLevel) Split(p Piece, track bool, emit func(Piece) error) error {
	if b.prefix && !strings.HasPrefix(p.Text, " ") {
		e := edit(p, track)
		e.put(" ", 0, 0)
		e.keep(0, len(p.Text))
		p = e.piece()
	}

	if b.Raw {
		if b.regex {
			return scanSplit(scanGPT2).Split(p, track, emit)
		}
		return emit(p)
	}

	return b.mapped(p, track, emit)
}

// mapped maps the whole piece and then cuts it where the pattern cuts the text before.
func (b *ByteLevel) mapped(p Piece, track bool, emit func(Piece) error) error {
	var ends []int
	e := edit(p, track)
	for i := 0; i < len(p.Text); {
		end := len(p.Text)
		if b.regex {
			end = scanGPT2(p.Text, i)
		}

		e.mapBytes(i, end)
		ends = append(ends, e.out.Len())
		i = end
	}

	p = e.piece()
	from := 0
	for _, end := range ends {
		if err := emit(p.Slice(from, end)); err != nil {
			return err
		}
		from = end
	}

	return nil
}

// ByteRunes returns the printable character that stands for each byte in byte-level vocabularies: the byte itself
// where it is printable Latin-1, otherwise the next one from U+0100 on.
func ByteRunes() (t [256]rune) {
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

// byteStrings is ByteRunes as strings.
var byteStrings = func() (t [256]string) {
	for b, r := range ByteRunes() {
		t[b] = string(r)
	}
	return t
}()

// runeBytes is the inverse of ByteRunes; -1: no byte.
var runeBytes = func() (t [512]int16) {
	for i := range t {
		t[i] = -1
	}
	for b, r := range ByteRunes() {
		t[r] = int16(b)
	}
	return t
}()

// AppendMapped appends the printable characters for the bytes of s.
func AppendMapped(dst []byte, s string) []byte {
	for i := range len(s) {
		dst = append(dst, byteStrings[s[i]]...)
	}
	return dst
}

// mapBytes writes every byte of a piece as its printable character.
func mapBytes(p Piece, track bool) Piece {
	e := edit(p, track)
	e.mapBytes(0, len(p.Text))
	return e.piece()
}

// mapBytes writes the bytes [a, b) of the source as their printable characters.
func (e *editor) mapBytes(a, b int) {
	s := e.src.Text
	for i := a; i < b; {
		if s[i] > ' ' && s[i] < 0x7F && !e.track {
			k := i + 1
			for k < b && s[k] > ' ' && s[k] < 0x7F {
				k++
			}

			e.keep(i, k)
			i = k
			continue
		}

		n := chars.RuneLen(s, i)
		for k := i; k < i+n; k++ {
			e.put(byteStrings[s[k]], i, i+n)
		}

		i += n
	}
}

// UnmapBytes turns the printable characters of a token into bytes; false when one of them stands for none.
func UnmapBytes(s string) (string, bool) {
	buf := make([]byte, 0, len(s))
	for _, r := range s {
		if r >= 512 || runeBytes[r] < 0 {
			return "", false
		}
		buf = append(buf, byte(runeBytes[r]))
	}
	return string(buf), true
}

// scriptSplit cuts where the script changes; spaces go with what they follow.
type scriptSplit struct{}

// Split implements Splitter.
func (scriptSplit) Split(p Piece, _ bool, emit func(Piece) error) error {
	from, last := -1, -1
	for i, r := range p.Text {
		script := int(chars.Script(r))
		if script == 0 {
			continue
		}

		if script != last {
			if from >= 0 {
				if err := emit(p.Slice(from, i)); err != nil {
					return err
				}
			}
			from = i
		}

		last = script
	}

	if from < 0 {
		return nil
	}

	return emit(p.Slice(from, len(p.Text)))
}
