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
	}

	return nil
}

// Generate continues a prompt and returns the new tokens, with the stop token where one ended the text. It ends
// early, without an error, where a model has no more positions. Of equal logits the lower id wins.
func (m *Model) Generate(ctx context.Context, prompt []int32, o GenerateOptions) ([]int32, error) {
	if err := o.Validate(); err != nil {
		return nil, err
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

	pick := newSampler(o)
	var out []int32
	next := prompt[s.Keep(prompt):]
	pick.see(prompt[:len(prompt)-len(next)])
	for len(out) < o.MaxTokens {
		// Only a table of positions ends: rotations go on.
		if len(out) > 0 && m.positions != nil && s.Len() >= m.config.MaxPositions {
			break
		}

		logits, err := s.Append(ctx, next)
		if err != nil {
			return out, err
		}

		// The penalty counts the prompt too, as transformers does.
		pick.see(next)
		id, ok := pick.next(logits, s.Len())
		if !ok {
			return out, fmt.Errorf("logits at position %d: %w: %s", s.Len()-1, ErrNonFinite, m.blame())
		}

		out = append(out, id)
		if o.Each != nil && !o.Each(id) || slices.Contains(o.Stop, id) {
			break
		}

		next = out[len(out)-1:]
	}

	return out, nil
}

// StopTokens are the tokens that end a text: those of generation_config.json, or of the configuration.
func (m *Model) StopTokens() []int32 { return slices.Clone(m.stop) }
