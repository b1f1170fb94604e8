package prepare

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
)

// Normalizer edits a text before it is split.
type Normalizer interface {
	Normalize(p Piece, track bool) (Piece, error)
}

func normalizerKinds() map[string]func(*config.Node) Normalizer {
	return map[string]func(*config.Node) Normalizer{
		"NFC": newUnicodeForm, "NFD": newUnicodeForm, "NFKC": newUnicodeForm, "NFKD": newUnicodeForm,
		"Lowercase":      func(*config.Node) Normalizer { return runeMap(lowerRune) },
		"StripAccents":   func(*config.Node) Normalizer { return runeMap(dropMark) },
		"Strip":          newStrip,
		"Prepend":        func(n *config.Node) Normalizer { return prepend(n.Need("prepend")) },
		"Replace":        newReplace,
		"BertNormalizer": newBertNormalizer,
		"Nmt":            func(*config.Node) Normalizer { return runeMap(nmtRune) },
		"Precompiled":    newCharsMap,
		"ByteLevel":      func(*config.Node) Normalizer { return byteNormalizer{} },
		"Sequence":       nil, // spelled out by appendNormalizers
	}
}

// Normalizers reads the section "normalizer" as a flat list.
func Normalizers(v config.Value) ([]Normalizer, error) {
	if v.Absent() {
		return nil, nil
	}
	n, err := config.NewNode(v, 0)
	if err != nil {
		return nil, err
	}
	return appendNormalizers(nil, n)
}

func appendNormalizers(list []Normalizer, n *config.Node) ([]Normalizer, error) {
	if n.Kind == "Sequence" {
		for _, c := range n.List("normalizers") {
			var err error
			if list, err = appendNormalizers(list, c); err != nil {
				return nil, err
			}
		}

		return list, n.Err
	}

	build := normalizerKinds()[n.Kind]
	if build == nil {
		return nil, config.Unknown(n.Kind, normalizerKinds())
	}

	return append(list, build(n)), n.Err
}

// runeMap replaces single characters: it returns the replacement and true, or false to keep the character.
type runeMap func(r rune) (string, bool)

// Normalize implements Normalizer.
func (m runeMap) Normalize(p Piece, track bool) (Piece, error) {
	var e *editor
	from := 0
	for i := 0; i < len(p.Text); {
		r, n := utf8.DecodeRuneInString(p.Text[i:])
		if s, change := m(r); change {
			if e == nil {
				e = edit(p, track)
			}
			e.keep(from, i)
			e.put(s, i, i+n)
			from = i + n
		}

		i += n
	}

	if e == nil {
		return p, nil
	}

	e.keep(from, len(p.Text))
	return e.piece(), nil
}

// asciiStrings holds every ASCII character as a string.
var asciiStrings = func() (t [utf8.RuneSelf]string) {
	for i := range t {
		t[i] = string(rune(i))
	}
	return t
}()

func lowerRune(r rune) (string, bool) {
	switch {
	case r < utf8.RuneSelf:
		if r >= 'A' && r <= 'Z' {
			return asciiStrings[r|0x20], true
		}
		return "", false
	case r == 'İ':
		return "i\u0307", true
	}

	if l := unicode.ToLower(r); l != r {
		return string(l), true
	}

	return "", false
}

// dropMark removes combining marks of every kind.
func dropMark(r rune) (string, bool) {
	const first, last = 0x1CF2, 0x1CF3 // marks once, letters now
	return "", r >= 0x300 && (chars.Of(r)&chars.M != 0 && !unicode.Is(chars.LateMarks, r) || r == first || r == last)
}

// nmtRune is the clean-up of SentencePiece's "nmt" rules: controls go, other kinds of space become a space.
func nmtRune(r rune) (string, bool) {
	switch {
	case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, r >= 0x200B && r <= 0x200F,
		r == 0x2028, r == 0x2029, r == 0x2581, r == 0xFEFF, r == 0xFFFD:
		return " ", true
	case r > 0 && r < ' ', r == 0x7F, r == 0x8F, r == 0x9F:
		return "", true
	}
	return "", false
}

// strip removes white space from the ends.
type strip struct{ left, right bool }

func newStrip(n *config.Node) Normalizer {
	return strip{n.Flag("strip_left", true), n.Flag("strip_right", true)}
}

// Normalize implements Normalizer.
func (s strip) Normalize(p Piece, _ bool) (Piece, error) {
	from, to := 0, len(p.Text)
	if s.right {
		to = chars.TrimRight(p.Text)
	}
	if s.left {
		from = to - len(chars.TrimLeft(p.Text[:to]))
	}
	return p.Slice(from, to), nil
}

// prepend puts a text in front of one that is not empty.
type prepend string

// Normalize implements Normalizer.
func (s prepend) Normalize(p Piece, track bool) (Piece, error) {
	if p.Text == "" || s == "" {
		return p, nil
	}
	e := edit(p, track)
	e.put(string(s), 0, 0)
	e.keep(0, len(p.Text))
	return e.piece(), nil
}

// replace puts a fixed text in place of every match.
type replace struct {
	find finder
	old  string // if the pattern is a text that is not empty: that text
	with string
}

func newReplace(n *config.Node) Normalizer {
	source := n.Object("pattern")
	find, err := newFinder(source)
	n.Fail(err, "pattern")
	return &replace{find, source.Text("String", ""), n.Text("content", "")}
}

// Normalize implements Normalizer.
func (r *replace) Normalize(p Piece, track bool) (Piece, error) {
	if p.Text == "" { // the library looks for nothing there, not even for a pattern that would match it
		return p, nil
	}

	e := edit(p, track)
	if r.old != "" {
		replaceAll(e, r.old, r.with)
		return e.piece(), nil
	}

	find := r.find.over(p.Text)
	defer find.done()

	prev := 0
	for from := 0; from <= len(p.Text); {
		start, end, err := find.next(from)
		if err != nil {
			return p, err
		}

		if start < 0 {
			break
		}

		from = end
		if start == end {
			from += max(1, runeSize(p.Text, end))
			if start == prev && start > 0 {
				continue // nothing, right behind a match
			}
		}

		e.keep(prev, start)
		e.put(r.with, start, end)
		prev = end
	}

	e.keep(prev, len(p.Text))
	return e.piece(), nil
}

// byteNormalizer maps every byte to its printable character.
type byteNormalizer struct{}

// Normalize implements Normalizer.
func (byteNormalizer) Normalize(p Piece, track bool) (Piece, error) { return mapBytes(p, track), nil }

// bertNormalizer is the clean-up of BERT: controls go and white space becomes a space, ideographs stand alone, accents
// go, letters become lower case.
type bertNormalizer []Normalizer

func newBertNormalizer(n *config.Node) Normalizer {
	var b bertNormalizer
	lower := n.Flag("lowercase", true)
	if n.Flag("clean_text", true) {
		b = append(b, runeMap(cleanRune))
	}
	if n.Flag("handle_chinese_chars", true) {
		b = append(b, runeMap(isolateIdeograph))
	}
	if n.Flag("strip_accents", lower) {
		b = append(b, decompose, runeMap(dropAccent))
	}
	if lower {
		b = append(b, runeMap(lowerRune))
	}

	return b
}

// Normalize implements Normalizer.
func (b bertNormalizer) Normalize(p Piece, track bool) (Piece, error) {
	for _, n := range b {
		var err error
		if p, err = n.Normalize(p, track); err != nil {
			return p, err
		}
	}
	return p, nil
}

func cleanRune(r rune) (string, bool) {
	switch {
	case r > ' ' && r < 0x7F:
		return "", false
	case r == ' ':
		return "", false
	case r == '\t', r == '\n', r == '\r':
		return " ", true
	case r == utf8.RuneError:
		return "", true
	}

	switch class := chars.Of(r); {
	case class&(chars.Controls|chars.Cf|chars.Co) != 0:
		return "", !unicode.Is(chars.LateFormat, r)
	case class&chars.Space != 0:
		return " ", true
	}

	return "", false
}

func isolateIdeograph(r rune) (string, bool) {
	if r < 0x3400 || !unicode.Is(chars.BERTIdeographs, r) {
		return "", false
	}
	return " " + string(r) + " ", true
}

// dropAccent removes non-spacing marks.
func dropAccent(r rune) (string, bool) {
	const pamudpod = 0x1734 // non-spacing once
	return "", r >= 0x300 && (chars.Of(r)&chars.Mn != 0 && !unicode.Is(chars.LateAccents, r) || r == pamudpod)
}

// isASCII reports whether s has no byte above 0x7F.
func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// hasMark reports whether the mark U+034F, which golang.org/x/text inserts into long runs of marks, was added.
func hasMark(before, after string) bool {
	const joiner = "\u034F"
	return strings.Contains(after, joiner) && strings.Count(after, joiner) != strings.Count(before, joiner)
}
