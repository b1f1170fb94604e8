package lm

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

// GenerateOptions say how [Model.Generate] continues a prompt.
type GenerateOptions struct {
	MaxTokens   int     // 0 means 128
	Temperature float64 // 0: always the most likely token
	TopK        int     // only the k most likely tokens; 0: all
	TopP        float64 // only the most likely tokens whose probabilities add up to p; 0 or 1: all
	Seed        uint64  // of the draws, which also depend on the position alone
	Stop        []int32 // tokens that end the text; nil: those of the checkpoint; empty: none
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
	}
	return nil
}

// Generate continues a prompt and returns the new tokens, with the stop token where one ended the text. It ends early, without an
// error, where a model has no more positions. Of equal logits the lower id wins.
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
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	pick := sampler{o: o}
	var out []int32
	next := prompt
	for len(out) < o.MaxTokens {
		if len(out) > 0 && m.positions != nil && s.Len() >= m.config.MaxPositions {
			break
		}
		logits, err := s.Append(ctx, next)
		if err != nil {
			return out, err
		}
		id, err := pick.next(logits, s.Len())
		if err != nil {
			return out, err
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

// sampler draws tokens.
type sampler struct {
	o     GenerateOptions
	order []candidate
}

type candidate struct {
	id int32
	p  float64
}

// next draws the token at a position. The draw depends on the seed, the position and the logits alone.
func (s *sampler) next(logits []float32, position int) (int32, error) {
	best := 0
	for i, v := range logits {
		if v > logits[best] || logits[best] != logits[best] {
			best = i
		}
	}
	top := float64(logits[best])
	if math.IsNaN(top) || math.IsInf(top, 0) {
		return 0, fmt.Errorf("logits at position %d: %w", position-1, ErrNonFinite)
	}
	if s.o.Temperature == 0 {
		return int32(best), nil
	}
	s.weigh(logits, top)
	s.cut()
	total := 0.0
	for _, c := range s.order {
		total += c.p
	}
	left := uniform(s.o.Seed, uint64(position)) * total
	for _, c := range s.order {
		if left -= c.p; left < 0 {
			return c.id, nil
		}
	}
	return s.order[len(s.order)-1].id, nil
}

// weigh makes the candidates, in the order of ids, or the most likely first where only some of them stay.
func (s *sampler) weigh(logits []float32, top float64) {
	s.order = s.order[:0]
	for i, v := range logits {
		if p := math.Exp((float64(v) - top) / s.o.Temperature); p > 0 {
			s.order = append(s.order, candidate{int32(i), p})
		}
	}
	if s.o.TopK > 0 || s.o.TopP > 0 && s.o.TopP < 1 {
		slices.SortFunc(s.order, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.id, b.id)) })
	}
}

// cut keeps the first k candidates, then the first whose probabilities reach p.
func (s *sampler) cut() {
	if k := s.o.TopK; k > 0 && k < len(s.order) {
		s.order = s.order[:k]
	}
	if s.o.TopP == 0 || s.o.TopP == 1 {
		return
	}
	total, sum := 0.0, 0.0
	for _, c := range s.order {
		total += c.p
	}
	for i, c := range s.order {
		if sum += c.p; sum >= s.o.TopP*total {
			s.order = s.order[:i+1]
			return
		}
	}
}

// uniform gives the number in [0, 1) that belongs to a seed and a counter: the finaliser of SplitMix64 (Steele, Lea and
// Flood, 2014) over both, of which the upper 53 bits count.
func uniform(seed, counter uint64) float64 {
	return float64(mix(mix(seed)+0x9e3779b97f4a7c15*(counter+1))>>11) / (1 << 53)
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
