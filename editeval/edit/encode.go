package edit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Encoded is a request as token ids.
type Encoded struct {
	Prompts [][]int32 // every template with the prompt in it, without the target; the first is the prompt alone
	Lookup  []int     // position of the subject's last token in each
	// sizes of consecutive groups of prompts: a key is the mean over groups of the mean inside a group
	Groups   []int
	Target   []int32 // what shall follow
	KL       []int32 // a sentence about the subject whose continuation shall stay
	KLLookup int     // the position whose continuation that is
}

// Validate checks that positions lie in their prompts and that groups are those of the prompts. The error wraps
// [ErrTokens].
func (r *Encoded) Validate() error {
	if len(r.Prompts) == 0 || len(r.Lookup) != len(r.Prompts) || len(r.Target) == 0 {
		return fmt.Errorf("%w: a request has prompts, a position in each, and a target", ErrTokens)
	}

	total := 0
	for _, n := range r.Groups {
		if n < 1 {
			return fmt.Errorf("%w: an empty group of prompts", ErrTokens)
		}
		total += n
	}

	if total != len(r.Prompts) {
		return fmt.Errorf("%w: groups of %d prompts, there are %d", ErrTokens, total, len(r.Prompts))
	}

	for i, p := range r.Prompts {
		if r.Lookup[i] < 0 || r.Lookup[i] >= len(p) {
			return fmt.Errorf("%w: prompt %d: position %d of %d", ErrTokens, i, r.Lookup[i], len(p))
		}
	}

	if len(r.KL) > 0 && (r.KLLookup < 0 || r.KLLookup >= len(r.KL)) {
		return fmt.Errorf("%w: position %d of %d in the sentence about the subject", ErrTokens, r.KLLookup,
			len(r.KL))
	}

	return nil
}

// bare is the prompt alone.
func (r *Encoded) bare() []int32 { return r.Prompts[0] }

// places are all prompts at the subject's last token.
func (r *Encoded) places() []site.Place {
	var out []site.Place
	for i, p := range r.Prompts {
		out = append(out, site.Place{IDs: p[:r.Lookup[i]+1], At: r.Lookup[i]})
	}
	return out
}

// searchable are the requests as the search for values takes them.
func searchable(reqs []Encoded) []optimize.Request {
	out := make([]optimize.Request, len(reqs))
	for i, r := range reqs {
		out[i] = optimize.Request(r)
	}
	return out
}

// Encoder turns records into token ids.
type Encoder struct {
	Tokenizer *tokenizer.Tokenizer // of the model
	NoSpecial bool                 // leave out the tokens that the tokenizer adds by itself, such as a start token
	Templates [][]string           // prefixes before prompts, of HParams; nil: none
	Positions int                  // of the model: a prompt with its answer must not be longer; 0: no bound
}

// fits refuses texts that are too long for the model.
func (x *Encoder) fits(text string, tokens int) error {
	if x.Positions > 0 && tokens > x.Positions {
		return fmt.Errorf("%w: %.60q has %d, the model takes %d", ErrTokens, text, tokens, x.Positions)
	}
	return nil
}

func (x *Encoder) encode(text string) ([]int32, error) {
	return x.Tokenizer.Encode(text, tokenizer.EncodeOptions{NoSpecial: x.NoSpecial})
}

// Prompt is the tokens of a prompt.
func (x *Encoder) Prompt(text string) ([]int32, error) {
	ids, err := x.encode(strings.TrimRight(text, " "))
	if err == nil && len(ids) == 0 {
		err = fmt.Errorf("%w: %.60q has none", ErrTokens, text)
	}
	if err == nil {
		err = x.fits(text, len(ids))
	}
	return ids, err
}

// Answer is the tokens that a prompt followed by a space and an answer has more than the prompt.
func (x *Encoder) Answer(prompt, answer string) ([]int32, error) {
	prompt = strings.TrimRight(prompt, " ")
	head, err := x.encode(prompt)
	if err != nil {
		return nil, err
	}

	all, err := x.encode(prompt + " " + strings.TrimLeft(answer, " "))
	if err != nil {
		return nil, err
	}

	if len(all) <= len(head) || !slices.Equal(all[:len(head)], head) {
		return nil, fmt.Errorf("%w: %.60q begins with other tokens once %.60q follows", ErrTokens, prompt, answer)
	}

	return all[len(head):], x.fits(prompt, len(all))
}

// last is the tokens of a text and the position of the last one that touches the subject, which ends at byte end.
func (x *Encoder) last(text string, start, end int) ([]int32, int, error) {
	ids, spans, err := x.Tokenizer.EncodeOffsets(text, tokenizer.EncodeOptions{NoSpecial: x.NoSpecial})
	if err != nil {
		return nil, 0, err
	}

	at := -1
	for i, s := range spans {
		if s.Start < end && s.End > start && s.End > s.Start {
			at = i
		}
	}

	if at < 0 {
		return nil, 0, fmt.Errorf("%w: no token of %.60q touches its subject", ErrTokens, text)
	}

	return ids, at, nil
}

// Record encodes a request.
func (x *Encoder) Record(r *Record) (Encoded, error) {
	var e Encoded
	prompt := strings.TrimRight(r.Prompt, " ")
	at := strings.Index(prompt, "{}")
	if at < 0 {
		return e, fmt.Errorf("record %s: %w: %.100q has no {}", r.ID, ErrSubject, prompt)
	}

	// Cut by the first {} only: a second one, or one in the subject itself, stays as it is written.
	full := prompt[:at] + r.Subject + prompt[at+2:]
	var err error
	if e.Target, err = x.Answer(full, r.New); err != nil {
		return e, fmt.Errorf("record %s: %w", r.ID, err)
	}

	for _, group := range x.Templates {
		e.Groups = append(e.Groups, len(group))

		for _, t := range group {
			head, tail, _ := strings.Cut(t, "{}")
			// Positions are bytes of the whole text: the prefix before it moves the subject, and the same word may
			// come earlier.
			start := len(head) + at
			ids, k, err := x.last(head+full+tail, start, start+len(r.Subject))
			if err != nil {
				return e, fmt.Errorf("record %s: %w", r.ID, err)
			}

			if err := x.fits(t, len(ids)+len(e.Target)); err != nil {
				return e, fmt.Errorf("record %s: with a prefix: %w", r.ID, err)
			}

			e.Prompts, e.Lookup = append(e.Prompts, ids), append(e.Lookup, k)
		}
	}

	// The sentence whose next token an edit must leave alone (KL term of ROME and MEMIT: "{} is a").
	if e.KL, e.KLLookup, err = x.last(r.Subject+" is a", 0, len(r.Subject)); err != nil {
		return e, fmt.Errorf("record %s: %w", r.ID, err)
	}

	return e, nil
}
