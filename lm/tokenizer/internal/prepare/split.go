package prepare

import (
	"fmt"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
	"github.com/modelcompress/compress/lm/tokenizer/internal/pattern"
)

// Splitter is one pre-tokenizer: it cuts a piece into smaller ones, perhaps with other text, and hands on those that
// are not empty.
type Splitter interface {
	Split(p Piece, track bool, emit func(Piece) error) error
}

func splitterKinds() map[string]func(*config.Node) Splitter {
	return map[string]func(*config.Node) Splitter{
		"ByteLevel": newByteLevelSplit, "Split": newPatternSplit, "Metaspace": newMetaspace,
		"Whitespace": func(*config.Node) Splitter {
			return &matchSplit{find: findFunc(findWhitespaceWords), how: removed, invert: true}
		},
		"WhitespaceSplit": func(*config.Node) Splitter {
			return &matchSplit{
				find: oneRune(chars.IsSpace),
				how:  removed,
			}
		},
		"BertPreTokenizer":   newBertSplit,
		"Punctuation":        newPunctuation,
		"Digits":             newDigits,
		"CharDelimiterSplit": newDelimiterSplit,
		"FixedLength":        func(n *config.Node) Splitter { return fixedLength(n.Integer("length", 5, 1, 1<<30)) },
		"UnicodeScripts":     func(*config.Node) Splitter { return scriptSplit{} },
		"Sequence":           nil, // spelled out by appendSplitters
	}
}

// Splitters reads the section "pre_tokenizer" as a flat list.
func Splitters(v config.Value) ([]Splitter, error) {
	if v.Absent() {
		return nil, nil
	}
	n, err := config.NewNode(v, 0)
	if err != nil {
		return nil, err
	}
	return appendSplitters(nil, n)
}

func appendSplitters(list []Splitter, n *config.Node) ([]Splitter, error) {
	if n.Kind == "Sequence" {
		for _, c := range n.List("pretokenizers") {
			var err error
			if list, err = appendSplitters(list, c); err != nil {
				return nil, err
			}
		}

		return list, n.Err
	}

	build := splitterKinds()[n.Kind]
	if build == nil {
		return nil, config.Unknown(n.Kind, splitterKinds())
	}

	return append(list, build(n)), n.Err
}

// finder looks for something in texts.
type finder interface {
	over(s string) search
}

// search looks through one text: with a function, or with a pattern's matcher.
type search struct {
	s       string
	find    findFunc
	matcher *pattern.Matcher
}

// next returns the next match at or after from; start < 0: none.
func (f *search) next(from int) (start, end int, err error) {
	if f.matcher != nil {
		return f.matcher.Find(from)
	}
	start, end = f.find(f.s, from)
	return start, end, nil
}

func (f *search) done() {
	if f.matcher != nil {
		f.matcher.Done()
	}
}

// findFunc is a finder that cannot fail.
type findFunc func(s string, from int) (start, end int)

func (f findFunc) over(s string) search { return search{s: s, find: f} }

// regex is a finder for a compiled pattern.
type regex struct{ pattern *pattern.Pattern }

func (r regex) over(s string) search { return search{s: s, matcher: r.pattern.Over(s)} }

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
		if chars.IsSpace(r) {
			i += n
			continue
		}

		word, end := chars.IsWord(r), i+n
		for end < len(s) {
			r, n := utf8.DecodeRuneInString(s[end:])
			if chars.IsWord(r) != word || !word && chars.IsSpace(r) {
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

func readBehavior(n *config.Node, def string) behavior {
	name := n.Text("behavior", def)
	how, ok := behaviors()[name]
	if !ok {
		n.Fail(config.Unknown(name, behaviors()), "behavior")
	}
	return how
}

// matchSplit cuts at the matches of a finder.
type matchSplit struct {
	find   finder
	how    behavior
	invert bool // what lies between matches counts as the match
}

// Split implements Splitter.
func (m *matchSplit) Split(p Piece, _ bool, emit func(Piece) error) error {
	j := joiner{piece: p, how: m.how, emit: emit}
	find := m.find.over(p.Text)
	defer find.done()

	prev := 0
	for from := 0; from <= len(p.Text); {
		start, end, err := find.next(from)
		if err != nil {
			return err
		}

		if start < 0 {
			break
		}

		if start == end && start == prev && from > 0 {
			from += max(1, runeSize(p.Text, end)) // nothing, right behind a match
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
			from += max(1, runeSize(p.Text, end))
		}
	}

	if prev < len(p.Text) {
		if err := j.add(prev, len(p.Text), m.invert); err != nil {
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
	piece    Piece
	how      behavior
	emit     func(Piece) error
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
		return j.emit(j.piece.Slice(a, b))
	case j.held && j.joins(last, match):
		j.to = b
		return nil
	}

	err := j.flush()
	j.from = a
	j.to = b
	j.held = true

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
	return j.emit(j.piece.Slice(j.from, j.to))
}

// scanSplit cuts a text into the successive matches of a scanner.
type scanSplit scanner

// Split implements Splitter.
func (scan scanSplit) Split(p Piece, _ bool, emit func(Piece) error) error {
	for i := 0; i < len(p.Text); {
		end := scan(p.Text, i)
		if err := emit(p.Slice(i, end)); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// newPatternSplit reads the pre-tokenizer "Split".
func newPatternSplit(n *config.Node) Splitter {
	how, invert := readBehavior(n, ""), n.Flag("invert", false)
	source := n.Object("pattern")
	if scan := scanners()[source.Text("Regex", "")]; scan != nil && (how == isolated || how == removed && invert) {
		return scanSplit(scan)
	}
	find, err := newFinder(source)
	n.Fail(err, "pattern")
	return &matchSplit{find: find, how: how, invert: invert}
}

// newFinder reads a pattern: {"String": …} or {"Regex": …}.
func newFinder(n *config.Node) (finder, error) {
	switch {
	case n.Has("String"):
		return literal(n.Text("String", "")), n.Err
	case n.Has("Regex"):
		p, err := pattern.Compile(n.Text("Regex", ""))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", config.ErrUnsupported, err)
		}
		return regex{p}, n.Err
	}

	return nil, fmt.Errorf("%w: neither \"String\" nor \"Regex\"", config.ErrSyntax)
}
