package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// The ways in which a request cannot be made.
var (
	ErrNoTokens = errors.New("no tokens to score")
	ErrTooLong  = failure.New("longer than the model's context", "raise --max-length, or lower max_gen_toks")
	ErrNoPrefix = errors.New("the tokenizer names neither a start nor an end token")
)

// Tokens turns texts into token ids: a tokenizer of this program, or one behind a server.
type Tokens interface {
	// Encode gives the token ids of a text.
	Encode(text string, o tokenizer.EncodeOptions) ([]int32, error)
	// Token gives the text of a special token.
	Token(id int32) (string, bool)
	// BOS is the start token, if there is one.
	BOS() (int32, bool)
	// EOS is the end token.
	EOS() (int32, bool)
	// PAD is the token that fills up.
	PAD() (int32, bool)
	// Hash tells tokenizers apart.
	Hash() string
}

// Encoder turns texts into token ids by the conventions of lm-evaluation-harness 0.4.13.
type Encoder struct {
	Tok       Tokens
	NoSpecial bool  // never add the tokenizer's special tokens
	Prefix    int32 // stands before a text that has no context
	BOSText   string

	context string // the latest context and its ids
	ids     []int32
}

// NewEncoder prepares a tokenizer. special nil: special tokens as the tokenizer adds them.
func NewEncoder(tok Tokens, special *bool) (*Encoder, error) {
	e := &Encoder{Tok: tok, NoSpecial: special != nil && !*special}
	var ok bool
	if e.Prefix, ok = tok.BOS(); !ok {
		if e.Prefix, ok = tok.EOS(); !ok {
			return nil, ErrNoPrefix
		}
	}
	e.BOSText, _ = tok.Token(e.Prefix)
	return e, nil
}

// encode encodes a text; one that begins with the start token's text gets no other start token.
func (e *Encoder) encode(text string) ([]int32, error) {
	plain := e.NoSpecial || e.BOSText != "" && strings.HasPrefix(text, e.BOSText)
	return e.Tok.Encode(text, tokenizer.EncodeOptions{NoSpecial: plain})
}

// Pair encodes a context and what follows it. White space at the end of the context counts as part of what
// follows; that is encoded together with the context and cut off by the number of the context's tokens.
func (e *Encoder) Pair(context, continuation string) (ctx, cont []int32, err error) {
	if context == "" {
		return e.alone(continuation)
	}

	trimmed := strings.TrimRightFunc(context, pyvalue.IsSpace)
	continuation = context[len(trimmed):] + continuation

	if trimmed != e.context || e.ids == nil {
		if e.ids, err = e.encode(trimmed); err != nil {
			return nil, nil, err
		}
		e.context = trimmed
	}

	whole, err := e.encode(trimmed + continuation)
	if err != nil {
		return nil, nil, err
	}

	if len(whole) <= len(e.ids) {
		return nil, nil, fmt.Errorf("%w: %.60q after its context", ErrNoTokens, continuation)
	}

	return e.ids, whole[len(e.ids):], nil
}

// alone encodes a text without a context: the prefix token stands before it, unless it begins with that itself.
func (e *Encoder) alone(text string) (ctx, cont []int32, err error) {
	cont, err = e.Tok.Encode(text, tokenizer.EncodeOptions{NoSpecial: true})
	if err == nil && len(cont) > 0 && cont[0] == e.Prefix {
		ctx, cont = cont[:1], cont[1:]
	} else {
		ctx = []int32{e.Prefix}
	}
	if err == nil && len(cont) == 0 {
		err = fmt.Errorf("%w: %.60q", ErrNoTokens, text)
	}

	return ctx, cont, err
}

// Sequence is a run of tokens of which the last ones are scored.
type Sequence struct {
	IDs    []int32 // what the model sees
	Target []int32 // what its last len(Target) positions should predict
	Before int     // tokens of the context before it was cut
	Cut    int     // tokens cut off at the left
}

// Fit makes a sequence of a context and what follows it: of both together the last limit+1 tokens count, and
// the last one is only predicted.
func Fit(ctx, cont []int32, limit int) (Sequence, error) {
	if len(cont) > limit {
		return Sequence{}, fmt.Errorf("%w: a continuation of %d tokens, limit %d", ErrTooLong, len(cont), limit)
	}

	whole := slices.Concat(ctx, cont)
	// A copy, since cont is the end of the encoding of both, which would be kept in memory with it: the sequences of a
	// whole task are.
	s := Sequence{Target: slices.Clone(cont), Before: len(ctx)}
	if s.Cut = max(0, len(whole)-limit-1); s.Cut > 0 {
		whole = whole[s.Cut:]
	}

	s.IDs = whole[: len(whole)-1 : len(whole)-1]
	return s, nil
}

// Windows cuts a text for a rolling likelihood: every token is predicted once, the first from the prefix token;
// interior windows begin with one token of context, and the last one has as much as fits.
func (e *Encoder) Windows(text string, limit int) (all []int32, windows []Sequence, err error) {
	if all, err = e.encode(text); err != nil {
		return nil, nil, err
	}
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("%w: %.60q", ErrNoTokens, text)
	}

	first := min(limit, len(all))
	windows = append(windows,
		Sequence{IDs: slices.Concat([]int32{e.Prefix}, all[:first-1]), Target: all[:first], Before: 1})

	for done := first; done < len(all); {
		n := min(len(all)-done, limit)
		end := done + n
		start := max(end-limit-1, 0)
		windows = append(windows, Sequence{IDs: all[start : end-1], Target: all[done:end], Before: done - start})
		done = end
	}

	return all, windows, nil
}

// Prompt encodes a text to be continued; of a long one the last limit tokens stay.
func (e *Encoder) Prompt(text string, limit int) (ids []int32, before int, err error) {
	if limit < 1 {
		return nil, 0, fmt.Errorf("%w: no room for a prompt", ErrTooLong)
	}
	if ids, err = e.encode(text); err != nil {
		return nil, 0, err
	}
	if len(ids) == 0 {
		ids = []int32{e.Prefix}
	}

	before = len(ids)
	return ids[max(0, before-limit):], before, nil
}

// CutAtStops keeps of a text what is before the first occurrence of each stop text, in the order of the list.
func CutAtStops(text string, stops []string) string {
	for _, s := range stops {
		if s != "" {
			text, _, _ = strings.Cut(text, s)
		}
	}
	return text
}

// valid replaces what is no UTF-8.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

// Share lets a sequence use the memory of another that the model sees the same of.
func (s *Sequence) Share(other *Sequence) {
	if slices.Equal(s.IDs, other.IDs) {
		s.IDs = other.IDs
	}
}
