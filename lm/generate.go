package lm

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// GenerateOptions say how [Model.Generate] continues a prompt. What shapes the probabilities is what it is in the
// transformers library, and acts in its order: the repetition penalty, the temperature, top-k, top-p, min-p.
type GenerateOptions struct {
	MaxTokens   int     // 0 means 128
	Temperature float64 // 0: always the most likely token
	TopK        int     // only the k most likely tokens; 0: all
	TopP        float64 // only the most likely tokens whose probabilities add up to p; 0 or 1: all
	MinP        float64 // only tokens at least this fraction as likely as the most likely one; 0: all
	// RepetitionPenalty divides the positive logits of all tokens that the prompt or the text has already, and
	// multiplies the negative ones, with or without sampling; 0 or 1: none. It is that of CTRL (arXiv:1909.05858).
	RepetitionPenalty float64

	Seed uint64  // of the sampling; what is sampled at a position depends on that and the seed alone
	Stop []int32 // tokens that end the text; nil: those of the checkpoint; empty: none
	// Session is where the keys and values of an earlier text are, which the next one reuses as far as the two begin
	// with the same tokens; it has those of this text afterwards. nil: one for this text alone. What is generated is
	// the same, but for rounding.
	Session *Session
	// Each gets every token as it comes; false ends the generation.
	Each func(id int32) bool

	// Draft proposes tokens, of which the model checks several in one pass; nil: it computes one at a time. The most
	// likely tokens are the same, also where two are nearly as likely: for any draft, the text is that of a draft that
	// proposes nothing. Beside a generation without a draft, logits differ by rounding (see [Batch]). What is sampled
	// has the same distribution; it is also the same text, unless the draft is itself a model that samples.
	Draft       Draft
	DraftTokens int          // that it proposes at most for a pass, fewer where they do not pay; 0: 8
	Drafted     *DraftReport // gets what came of it; nil: nobody asks
}

// Validate returns every fault of the options.
func (o *GenerateOptions) Validate() error {
	switch {
	case o.MaxTokens < 0:
		return fmt.Errorf("%w: %d tokens", ErrInput, o.MaxTokens)
	case o.Temperature < 0 || math.IsNaN(o.Temperature) || math.IsInf(o.Temperature, 0):
		return fmt.Errorf("%w: temperature %g is not 0 or more", ErrInput, o.Temperature)
	case o.TopK < 0:
		return fmt.Errorf("%w: top-k %d is not 0 or more", ErrInput, o.TopK)
	case o.TopP < 0 || o.TopP > 1 || math.IsNaN(o.TopP):
		return fmt.Errorf("%w: top-p %g is not between 0 and 1", ErrInput, o.TopP)
	case o.MinP < 0 || o.MinP > 1 || math.IsNaN(o.MinP):
		return fmt.Errorf("%w: min-p %g is not between 0 and 1", ErrInput, o.MinP)
	case o.RepetitionPenalty < 0 || math.IsNaN(o.RepetitionPenalty) || math.IsInf(o.RepetitionPenalty, 0):
		return fmt.Errorf("%w: repetition penalty %g is not a positive number", ErrInput, o.RepetitionPenalty)
	case o.DraftTokens < 0:
		return fmt.Errorf("%w: %d tokens of a draft", ErrInput, o.DraftTokens)
	}

	return nil
}

// Generate continues a prompt and returns the new tokens, with the stop token where one ended the text. It ends
// early, without an error, where a model has no more positions. Of equal logits the lower id wins.
func (m *Model) Generate(ctx context.Context, prompt []int32, o GenerateOptions) ([]int32, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Draft != nil && m.opts.KVPositions > 0 {
		return nil, fmt.Errorf("%w: a draft needs the keys and values of all positions, and %d are kept", ErrInput,
			m.opts.KVPositions)
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 128
	}
	if o.Stop == nil {
		o.Stop = m.stop
	}

	s := o.Session
	if s == nil {
		var err error
		if s, err = m.NewSession(SessionOptions{}); err != nil {
			return nil, err
		}
		defer s.Close()
	}

	g := &generation{m: m, o: o, s: s, pick: Sampler{newSampler(o)}, ids: slices.Clone(prompt)}
	// The penalty counts the prompt too, as transformers does.
	g.pick.See(prompt)
	logits, err := s.Append(ctx, prompt[s.Keep(prompt):])
	if err != nil {
		return nil, err
	}

	more, err := g.choose(logits, s.Len())
	switch {
	case err != nil || !more:
	case o.Draft != nil:
		err = g.drafted(ctx)
	default:
		err = g.plain(ctx)
	}
	return g.ids[len(prompt):], err
}

// StopTokens are the tokens that end a text: those of generation_config.json, or of the configuration.
func (m *Model) StopTokens() []int32 { return slices.Clone(m.stop) }
