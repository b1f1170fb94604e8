package lm

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
)

// Sampler chooses tokens from logits, as [Model.Generate] does.
type Sampler struct{ s sampler }

// NewSampler is a sampler with the settings of a generation that shape probabilities, and its seed.
func NewSampler(o GenerateOptions) (*Sampler, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Sampler{newSampler(o)}, nil
}

// See takes tokens of the sequence, for the repetition penalty: those of the prompt, and each chosen one.
func (s *Sampler) See(ids []int32) { s.s.see(ids) }

// Next chooses the token at a position of the sequence. The choice depends on the seed, the position and the logits
// alone. The error is [ErrNonFinite] where the largest logit is not a finite number.
func (s *Sampler) Next(logits []float32, position int) (int32, error) {
	id, ok := s.s.next(logits, position)
	if !ok {
		return 0, fmt.Errorf("logits at position %d: %w", position-1, ErrNonFinite)
	}
	return id, nil
}

func newSampler(o GenerateOptions) sampler {
	return sampler{
		penalty: o.RepetitionPenalty, temperature: o.Temperature, topK: o.TopK, topP: o.TopP, minP: o.MinP,
		seed: o.Seed,
	}
}

// sampler chooses the next token from logits. Each limit sees what those before it have left, in the order of the
// fields.
type sampler struct {
	penalty     float64 // of tokens that were there before; 0 or 1: none
	temperature float64 // 0: always the most likely token
	topK        int     // only the k most likely tokens; 0: all
	topP        float64 // only the most likely tokens whose probabilities add up to p; 0 or 1: all
	minP        float64 // only tokens at least this fraction as likely as the most likely one; 0: all
	seed        uint64

	order  []candidate
	seen   map[int32]bool // tokens of the sequence so far, where there is a penalty
	scaled []float32
}

type candidate struct {
	id int32
	p  float64
}

// see takes tokens of the sequence, for the penalty.
func (s *sampler) see(ids []int32) {
	if s.penalty == 0 || s.penalty == 1 {
		return
	}
	if s.seen == nil {
		s.seen = map[int32]bool{}
	}
	for _, id := range ids {
		s.seen[id] = true
	}
}

// penalised are the logits with the penalty of tokens that were there before, each once however often it was there. It
// makes them less likely whatever their sign. The logits themselves are the session's, and stay.
func (s *sampler) penalised(logits []float32) []float32 {
	if len(s.seen) == 0 {
		return logits
	}

	s.scaled = append(s.scaled[:0], logits...)
	for id := range s.seen {
		if v := float64(s.scaled[id]); v < 0 {
			s.scaled[id] = float32(v * s.penalty)
		} else {
			s.scaled[id] = float32(v / s.penalty)
		}
	}

	return s.scaled
}

// next samples the token at a position. It depends on the seed, the position and the logits alone; of equal
// logits the lower id wins. False: the largest logit is not a finite number.
func (s *sampler) next(logits []float32, position int) (int32, bool) {
	best, ok := s.shape(logits)
	if !ok || s.temperature == 0 {
		return best, ok
	}
	return draw(s.order, rng.Token(s.seed).Float(uint64(position))), true
}

// shape makes the candidates from which a token is sampled, if one is, with weights that do not add up to 1. best is
// the most likely token. False: the largest logit is not a finite number.
func (s *sampler) shape(logits []float32) (best int32, ok bool) {
	logits = s.penalised(logits)
	for i, v := range logits {
		// A NaN at the start could not be beaten.
		if v > logits[best] || logits[best] != logits[best] {
			best = int32(i)
		}
	}

	top := float64(logits[best])
	if math.IsNaN(top) || math.IsInf(top, 0) {
		return 0, false
	}

	if s.temperature > 0 {
		// Probabilities are relative to the largest logit, so that exp cannot overflow.
		s.weigh(logits, top)
		s.cut()
	}
	return best, true
}

// draw chooses one of some candidates by a number of [0, 1).
func draw(list []candidate, u float64) int32 {
	left := u * totalOf(list)
	for _, c := range list {
		if left -= c.p; left < 0 {
			return c.id
		}
	}

	// Rounding may leave a rest after the last candidate.
	return list[len(list)-1].id
}

func totalOf(list []candidate) float64 {
	total := 0.0
	for _, c := range list {
		total += c.p
	}
	return total
}

// weigh makes the candidates, in the order of ids, or the most likely first where only some of them stay.
func (s *sampler) weigh(logits []float32, top float64) {
	s.order = s.order[:0]
	for i, v := range logits {
		if p := math.Exp((float64(v) - top) / s.temperature); p > 0 {
			s.order = append(s.order, candidate{int32(i), p})
		}
	}

	if s.topK > 0 || s.topP > 0 && s.topP < 1 {
		slices.SortFunc(s.order, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(b.p, a.p),
				cmp.Compare(a.id, b.id))
		})
	}
}

// cut keeps the first k candidates with all that are as likely as the last of them, then the first whose probabilities
// reach p, then those that are likely enough beside the first.
func (s *sampler) cut() {
	if k := s.topK; k > 0 && k < len(s.order) {
		for k < len(s.order) && s.order[k].p == s.order[k-1].p {
			k++
		}
		s.order = s.order[:k]
	}

	s.cutTopP()
	if s.minP > 0 { // the most likely one has the weight 1
		s.order = slices.DeleteFunc(s.order, func(c candidate) bool { return c.p < s.minP })
	}
}

func (s *sampler) cutTopP() {
	if s.topP == 0 || s.topP == 1 {
		return
	}

	total, sum := totalOf(s.order), 0.0
	for i, c := range s.order {
		if sum += c.p; sum >= s.topP*total {
			s.order = s.order[:i+1]
			return
		}
	}
}
