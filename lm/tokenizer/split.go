package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// splitter is one pre-tokenizer: it cuts a piece into smaller ones, perhaps with other text, and hands on those that
// are not empty.
type splitter interface {
	split(x *encoder, p piece, emit func(piece) error) error
}

func splitterKinds() map[string]func(*node) splitter {
	return map[string]func(*node) splitter{
		"ByteLevel": newByteLevelSplit, "Split": newPatternSplit, "Metaspace": newMetaspace,
		"Whitespace": func(*node) splitter {
			return &matchSplit{find: findFunc(findWhitespaceWords), how: removed, invert: true}
		},
		"WhitespaceSplit":    func(*node) splitter { return &matchSplit{find: oneRune(isSpace), how: removed} },
		"BertPreTokenizer":   newBertSplit,
		"Punctuation":        newPunctuation,
		"Digits":             newDigits,
		"CharDelimiterSplit": newDelimiterSplit,
		"FixedLength":        func(n *node) splitter { return fixedLength(n.integer("length", 5, 1, maxText)) },
		"UnicodeScripts":     func(*node) splitter { return scriptSplit{} },
		"Sequence":           nil, // spelled out by appendSplitters
	}
}

// buildSplitters reads the section "pre_tokenizer" as a flat list.
func buildSplitters(v value) ([]splitter, error) {
	if v.absent() {
		return nil, nil
	}
	n, err := newNode(v, 0)
	if err != nil {
		return nil, err
	}
	return appendSplitters(nil, n)
}

func appendSplitters(list []splitter, n *node) ([]splitter, error) {
	if n.kind == "Sequence" {
		for _, c := range n.list("pretokenizers") {
			var err error
			if list, err = appendSplitters(list, c); err != nil {
				return nil, err
			}
		}
		return list, n.err
	}
	build := splitterKinds()[n.kind]
	if build == nil {
		return nil, unknown(n.kind, splitterKinds())
	}
	return append(list, build(n)), n.err
}

// finder looks for something in texts.
type finder interface {
	over(s string) search
}

// search looks through one text: find returns the next match at or after from, start < 0 for none. done ends it.
type search interface {
	find(from int) (start, end int, err error)
	done()
}

// findFunc is a finder that cannot fail.
type findFunc func(s string, from int) (start, end int)

func (f findFunc) over(s string) search { return &funcSearch{f, s} }

type funcSearch struct {
	f findFunc
	s string
}

func (f *funcSearch) find(from int) (int, int, error) {
	start, end := f.f(f.s, from)
	return start, end, nil
}

func (*funcSearch) done() {}

// oneRune finds single characters.
func oneRune(is func(rune) bool) finder {
	return findFunc(func(s string, from int) (int, int) {
		for i := from; i < len(s); {
			r, n := utf8.DecodeRuneInString(s[i:])
			if is(r) {
				return i, i + n
			}
			i += n
		}
		return -1, -1
	})
}

// findWhitespaceWords finds \w+|[^\w\s]+.
func findWhitespaceWords(s string, from int) (int, int) {
	for i := from; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if isSpace(r) {
			i += n
			continue
		}
		word, end := isWord(r), i+n
		for end < len(s) {
			r, n := utf8.DecodeRuneInString(s[end:])
			if isWord(r) != word || !word && isSpace(r) {
				break
			}
			end += n
		}
		return i, end
	}
	return -1, -1
}

// behavior says what becomes of the matches of a split.
type behavior uint8

const (
	removed    behavior = iota
	isolated            // a piece of their own
	mergedPrev          // the end of the piece before
	mergedNext          // the beginning of the piece behind
	contiguous          // adjacent matches are one piece
)

func behaviors() map[string]behavior {
	return map[string]behavior{
		"Removed": removed, "Isolated": isolated, "MergedWithPrevious": mergedPrev,
		"MergedWithNext": mergedNext, "Contiguous": contiguous,
	}
}

func readBehavior(n *node, def string) behavior {
	name := n.text("behavior", def)
	how, ok := behaviors()[name]
	if !ok {
		n.fail(unknown(name, behaviors()), "behavior")
	}
	return how
}

// matchSplit cuts at the matches of a finder.
type matchSplit struct {
	find   finder
	how    behavior
	invert bool // what lies between matches counts as the match
}

func (m *matchSplit) split(_ *encoder, p piece, emit func(piece) error) error {
	j := joiner{piece: p, how: m.how, emit: emit}
	search := m.find.over(p.text)
	defer search.done()
	prev := 0
	for from := 0; from <= len(p.text); {
		start, end, err := search.find(from)
		if err != nil {
			return err
		}
		if start < 0 {
			break
		}
		if start == end && start == prev && from > 0 {
			from += max(1, runeSize(p.text, end)) // nothing, right behind a match
			continue
		}
		if prev < start {
			if err := j.add(prev, start, m.invert); err != nil {
				return err
			}
		}
		if err := j.add(start, end, !m.invert); err != nil {
			return err
		}
		prev, from = end, end
		if start == end {
			from += max(1, runeSize(p.text, end))
		}
	}
	if prev < len(p.text) {
		if err := j.add(prev, len(p.text), m.invert); err != nil {
			return err
		}
	}
	return j.flush()
}

func runeSize(s string, i int) int {
	_, n := utf8.DecodeRuneInString(s[i:])
	return n
}

// joiner forms pieces from the successive parts of a piece, matches and what lies between them.
type joiner struct {
	piece    piece
	how      behavior
	emit     func(piece) error
	from, to int // the part that is held back
	held     bool
	match    bool // the last part was a match
}

func (j *joiner) add(a, b int, match bool) error {
	last := j.match
	j.match = match
	switch {
	case j.how == removed:
		if match || a == b {
			return nil
		}
		return j.emit(j.piece.slice(a, b))
	case j.held && j.joins(last, match):
		j.to = b
		return nil
	}
	err := j.flush()
	j.from, j.to, j.held = a, b, true
	return err
}

// joins reports whether a part belongs to the one before it.
func (j *joiner) joins(last, match bool) bool {
	switch j.how {
	case mergedPrev:
		return match && !last
	case mergedNext:
		return last && !match
	case contiguous:
		return last == match
	}
	return false
}

func (j *joiner) flush() error {
	if !j.held || j.from == j.to {
		return nil
	}
	j.held = false
	return j.emit(j.piece.slice(j.from, j.to))
}

// scanSplit cuts a text into the successive matches of a scanner.
type scanSplit scanner

func (scan scanSplit) split(_ *encoder, p piece, emit func(piece) error) error {
	for i := 0; i < len(p.text); {
		end := scan(p.text, i)
		if err := emit(p.slice(i, end)); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// newPatternSplit reads the pre-tokenizer "Split".
func newPatternSplit(n *node) splitter {
	how, invert := readBehavior(n, ""), n.flag("invert", false)
	pattern := n.object("pattern")
	if scan := scanners()[pattern.text("Regex", "")]; scan != nil && (how == isolated || how == removed && invert) {
		return scanSplit(scan)
	}
	find, err := newFinder(pattern)
	n.fail(err, "pattern")
	return &matchSplit{find: find, how: how, invert: invert}
}

// newFinder reads a pattern: {"String": …} or {"Regex": …}.
func newFinder(n *node) (finder, error) {
	switch {
	case n.has("String"):
		return literal(n.text("String", "")), n.err
	case n.has("Regex"):
		p, err := compilePattern(n.text("Regex", ""))
		if err != nil {
			return nil, err
		}
		return p, n.err
	}
	return nil, fmt.Errorf("%w: neither \"String\" nor \"Regex\"", ErrSyntax)
}
