package tokenizer

import (
	"fmt"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/prepare"
)

// Span is a range of bytes [Start, End) of the text that was encoded.
type Span struct{ Start, End int }

// maxText bounds the input of one call; positions are kept in 32 bits.
const maxText = 1 << 30

// EncodeOptions changes how a text is encoded. The zero value encodes as the file says: special tokens written in the
// text are recognised, and the tokens of the post-processor's template (BOS, EOS, CLS …) are added.
type EncodeOptions struct {
	NoSpecial     bool // do not add the template's tokens; default: they are added
	SpecialAsText bool // read special tokens written in the text as plain text; default: they are recognised
}

// Encode returns the ids of text. It fails with ErrNoUnknown when the text holds something that the vocabulary cannot
// express and the model has no unknown token, with ErrPatternCost when a split pattern is too costly on this text.
func (t *Tokenizer) Encode(text string, o EncodeOptions) ([]int32, error) {
	return t.AppendEncode(make([]int32, 0, len(text)/4+4), text, o)
}

// AppendEncode appends the ids of text to dst and returns the longer slice; see Encode. On an error dst comes back as
// it was.
func (t *Tokenizer) AppendEncode(dst []int32, text string, o EncodeOptions) ([]int32, error) {
	x := t.encoder(o)
	defer t.release(x)
	x.ids = dst
	if err := x.single(text); err != nil {
		return dst, err
	}
	return x.ids, nil
}

// EncodePair encodes two texts as the file's template for pairs says. types holds each token's segment (0 or 1 in
// every usual template). With NoSpecial the two are joined without anything between.
func (t *Tokenizer) EncodePair(a, b string, o EncodeOptions) (ids, types []int32, err error) {
	x := t.encoder(o)
	defer t.release(x)

	x.ids = make([]int32, 0, (len(a)+len(b))/4+8)
	for _, item := range t.post.items(true, o.NoSpecial) {
		switch item.part {
		case partA:
			err = x.text(a)
		case partB:
			err = x.text(b)
		default:
			x.ids = append(x.ids, item.ids...)
		}
		if err != nil {
			return nil, nil, err
		}

		for len(types) < len(x.ids) {
			types = append(types, item.typeID)
		}
	}

	return x.ids, types, nil
}

// EncodeOffsets is Encode that also returns, for each id, the bytes of text that it came from, always whole characters;
// Span{0, 0} for tokens of the template. It is slower than Encode. Where a normalizer replaced several characters by
// one, or one by several, every token of the result covers all of them.
func (t *Tokenizer) EncodeOffsets(text string, o EncodeOptions) ([]int32, []Span, error) {
	x := t.encoder(o)
	defer t.release(x)
	x.track = true
	x.ids, x.spans = make([]int32, 0, len(text)/4+4), make([]Span, 0, len(text)/4+4)
	if err := x.single(text); err != nil {
		return nil, nil, err
	}
	return x.ids, x.spans, nil
}

// encoder is the working memory of one encoding.
type encoder struct {
	t     *Tokenizer
	opts  EncodeOptions
	ids   []int32
	spans []Span
	track bool
	syms  []symbol
	heap  []uint64
	buf   []byte
	best  []pathNode
	steps []func(prepare.Piece) error // steps[i] runs pre-tokenizer i and what follows; the last one is the model
	cache wordCache
}

func newEncoder(t *Tokenizer) *encoder {
	x := &encoder{t: t}
	x.steps = make([]func(prepare.Piece) error, len(t.pre)+1)
	for i, s := range t.pre {
		x.steps[i] = func(p prepare.Piece) error { return s.Split(p, x.track, x.steps[i+1]) }
	}
	x.steps[len(t.pre)] = func(p prepare.Piece) error { return t.model.tokenize(x, p) }
	return x
}

func (t *Tokenizer) encoder(o EncodeOptions) *encoder {
	x := t.pool.Get().(*encoder)
	x.opts, x.track = o, false
	return x
}

// keepSymbols bounds what an idle encoder holds on to after a long text.
const keepSymbols = 1 << 14

func (t *Tokenizer) release(x *encoder) {
	x.ids, x.spans = nil, nil
	if cap(x.syms) > keepSymbols {
		x.syms, x.heap = nil, nil
	}
	if cap(x.best) > keepSymbols {
		x.best = nil
	}
	t.pool.Put(x)
}

// single encodes one text with the template around it.
func (x *encoder) single(text string) error {
	for _, item := range x.t.post.items(false, x.opts.NoSpecial) {
		if item.part == partA {
			if err := x.text(text); err != nil {
				return err
			}
			continue
		}

		x.ids = append(x.ids, item.ids...)
		if x.track {
			x.spans = append(x.spans, make([]Span, len(item.ids))...)
		}
	}

	return nil
}

// text encodes one text without anything added.
func (x *encoder) text(s string) error {
	if len(s) > maxText {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, len(s), maxText)
	}

	p := prepare.Piece{Text: s, First: true}
	if !utf8.ValidString(s) {
		p = prepare.Repair(p, x.track)
	}

	from := len(x.spans)
	t := x.t
	err := t.added.plain.split(x, p, func(p prepare.Piece) error {
		p, err := t.normalize(p, x.track)
		if err != nil {
			return err
		}
		return t.added.normalized.split(x, p, x.steps[0])
	})
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}

	if x.track {
		t.post.trim(x.ids[len(x.ids)-(len(x.spans)-from):], x.spans[from:], t)
		wholeRunes(s, x.spans[from:])
	}

	return nil
}

// emit adds a token that came from the bytes [a, b) of p.
func (x *encoder) emit(id int32, p prepare.Piece, a, b int) {
	x.ids = append(x.ids, id)
	if x.track {
		x.spans = append(x.spans, Span(p.Span(a, b)))
	}
}

// wholeRunes widens spans so that none begins or ends inside a character of s. A byte that belongs to no character is
// one by itself.
func wholeRunes(s string, spans []Span) {
	for i := range spans {
		sp := &spans[i]
		if first, _, inside := within(s, sp.Start); inside {
			sp.Start = first
		}
		if _, end, inside := within(s, sp.End); inside && sp.End > sp.Start {
			sp.End = end
		}
	}
}

// within finds the character that a position of s is inside of.
func within(s string, at int) (first, end int, inside bool) {
	if at <= 0 || at >= len(s) || utf8.RuneStart(s[at]) {
		return 0, 0, false
	}
	for first = at - 1; first >= max(0, at-utf8.UTFMax+1); first-- {
		if utf8.RuneStart(s[first]) {
			_, n := utf8.DecodeRuneInString(s[first:])
			return first, first + n, first+n > at
		}
	}
	return 0, 0, false
}
