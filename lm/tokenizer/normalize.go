package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// normalizer edits a text before it is split.
type normalizer interface {
	normalize(p piece, track bool) (piece, error)
}

func normalizerKinds() map[string]func(*node) normalizer {
	return map[string]func(*node) normalizer{
		"NFC": newUnicodeForm, "NFD": newUnicodeForm, "NFKC": newUnicodeForm, "NFKD": newUnicodeForm,
		"Lowercase":      func(*node) normalizer { return runeMap(lowerRune) },
		"StripAccents":   func(*node) normalizer { return runeMap(dropMark) },
		"Strip":          newStrip,
		"Prepend":        func(n *node) normalizer { return prepend(n.need("prepend")) },
		"Replace":        newReplace,
		"BertNormalizer": newBertNormalizer,
		"Nmt":            func(*node) normalizer { return runeMap(nmtRune) },
		"Precompiled":    newCharsMap,
		"ByteLevel":      func(*node) normalizer { return byteNormalizer{} },
		"Sequence":       nil, // spelled out by appendNormalizers
	}
}

// buildNormalizers reads the section "normalizer" as a flat list.
func buildNormalizers(v value) ([]normalizer, error) {
	if v.absent() {
		return nil, nil
	}
	n, err := newNode(v, 0)
	if err != nil {
		return nil, err
	}
	return appendNormalizers(nil, n)
}

func appendNormalizers(list []normalizer, n *node) ([]normalizer, error) {
	if n.kind == "Sequence" {
		for _, c := range n.list("normalizers") {
			var err error
			if list, err = appendNormalizers(list, c); err != nil {
				return nil, err
			}
		}
		return list, n.err
	}
	build := normalizerKinds()[n.kind]
	if build == nil {
		return nil, unknown(n.kind, normalizerKinds())
	}
	return append(list, build(n)), n.err
}

// runeMap replaces single characters: it returns the replacement and true, or false to keep the character.
type runeMap func(r rune) (string, bool)

func (m runeMap) normalize(p piece, track bool) (piece, error) {
	var e *editor
	from := 0
	for i := 0; i < len(p.text); {
		r, n := utf8.DecodeRuneInString(p.text[i:])
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
	e.keep(from, len(p.text))
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
	return "", r >= 0x300 && classOf(r)&setM != 0 && !unicode.Is(lateMarks, r)
}

// nmtRune is the clean-up of SentencePiece's "nmt" rules: controls go, other kinds of space become a space.
func nmtRune(r rune) (string, bool) {
	switch {
	case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, r >= 0x200B && r <= 0x200F,
		r == 0x2028, r == 0x2029, r == 0x2581, r == 0xFEFF, r == 0xFFFD:
		return " ", true
	case r < ' ', r == 0x7F, r == 0x8F, r == 0x9F:
		return "", true
	}
	return "", false
}

// strip removes white space from the ends.
type strip struct{ left, right bool }

func newStrip(n *node) normalizer {
	return strip{n.flag("strip_left", true), n.flag("strip_right", true)}
}

func (s strip) normalize(p piece, _ bool) (piece, error) {
	from, to := 0, len(p.text)
	if s.right {
		to = trimRightSpace(p.text)
	}
	if s.left {
		from = to - len(trimLeftSpace(p.text[:to]))
	}
	return p.slice(from, to), nil
}

// prepend puts a text in front of one that is not empty.
type prepend string

func (s prepend) normalize(p piece, track bool) (piece, error) {
	if p.text == "" || s == "" {
		return p, nil
	}
	e := edit(p, track)
	e.put(string(s), 0, 0)
	e.keep(0, len(p.text))
	return e.piece(), nil
}

// replace puts a fixed text in place of every match.
type replace struct {
	find finder
	with string
}

func newReplace(n *node) normalizer {
	find, err := newFinder(n.object("pattern"))
	n.fail(err, "pattern")
	return &replace{find, n.text("content", "")}
}

func (r *replace) normalize(p piece, track bool) (piece, error) {
	e := edit(p, track)
	if old, ok := r.find.(literal); ok && old != "" {
		replaceAll(e, string(old), r.with)
		return e.piece(), nil
	}
	search := r.find.over(p.text)
	defer search.done()
	prev := 0
	for from := 0; from <= len(p.text); {
		start, end, err := search.find(from)
		if err != nil {
			return p, err
		}
		if start < 0 {
			break
		}
		from = end
		if start == end {
			from += max(1, runeSize(p.text, end))
			if start == prev && start > 0 {
				continue // nothing, right behind a match
			}
		}
		e.keep(prev, start)
		e.put(r.with, start, end)
		prev = end
	}
	e.keep(prev, len(p.text))
	return e.piece(), nil
}

// byteNormalizer maps every byte to its printable character.
type byteNormalizer struct{}

func (byteNormalizer) normalize(p piece, track bool) (piece, error) { return mapBytes(p, track), nil }

// bertNormalizer is the clean-up of BERT: controls go and white space becomes a space, ideographs stand alone, accents
// go, letters become lower case.
type bertNormalizer []normalizer

func newBertNormalizer(n *node) normalizer {
	var b bertNormalizer
	lower := n.flag("lowercase", true)
	if n.flag("clean_text", true) {
		b = append(b, runeMap(cleanRune))
	}
	if n.flag("handle_chinese_chars", true) {
		b = append(b, runeMap(isolateIdeograph))
	}
	if n.flag("strip_accents", lower) {
		b = append(b, decompose, runeMap(dropAccent))
	}
	if lower {
		b = append(b, runeMap(lowerRune))
	}
	return b
}

func (b bertNormalizer) normalize(p piece, track bool) (piece, error) {
	for _, n := range b {
		var err error
		if p, err = n.normalize(p, track); err != nil {
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
	switch class := classOf(r); {
	case class&(setCc|catCf|catCo) != 0:
		return "", r < 0x110BE || !unicode.Is(lateFormat, r)
	case class&setSpace != 0:
		return " ", true
	}
	return "", false
}

func isolateIdeograph(r rune) (string, bool) {
	if r < 0x3400 || !unicode.Is(bertIdeographs, r) {
		return "", false
	}
	return " " + string(r) + " ", true
}

// dropAccent removes non-spacing marks.
func dropAccent(r rune) (string, bool) {
	return "", r >= 0x300 && classOf(r)&catMn != 0 && !unicode.Is(lateAccents, r)
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
