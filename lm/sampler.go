package lm

import (
	"cmp"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
)

// sampler chooses the next token from logits.
type sampler struct {
	temperature float64 // 0: always the most likely token
	topP        float64 // only the most likely tokens whose probabilities add up to p; 0 or 1: all
	topK        int     // only the k most likely tokens; 0: all
	seed        uint64

	order []candidate
}

type candidate struct {
	id int32
	p  float64
}

// next samples the token at a position. It depends on the seed, the position and the logits alone; of equal
// logits the lower id wins. False: the largest logit is not a finite number.
func (s *sampler) next(logits []float32, position int) (int32, bool) {
	best := 0
	for i, v := range logits {
		if v > logits[best] || logits[best] != logits[best] {
			best = i
		}
	}

	top := float64(logits[best])
	if math.IsNaN(top) || math.IsInf(top, 0) {
		return 0, false
	}
	if s.temperature == 0 {
		return int32(best), true
	}

	s.weigh(logits, top)
	s.cut()
	total := 0.0
	for _, c := range s.order {
		total += c.p
	}

	left := rng.Token(s.seed).Float(uint64(position)) * total
	for _, c := range s.order {
		if left -= c.p; left < 0 {
			return c.id, true
		}
	}

	return s.order[len(s.order)-1].id, true
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

// cut keeps the first k candidates, then the first whose probabilities reach p.
func (s *sampler) cut() {
	if k := s.topK; k > 0 && k < len(s.order) {
		s.order = s.order[:k]
	}
	if s.topP == 0 || s.topP == 1 {
		return
	}

	total, sum := 0.0, 0.0
	for _, c := range s.order {
		total += c.p
	}

	for i, c := range s.order {
		if sum += c.p; sum >= s.topP*total {
			s.order = s.order[:i+1]
			return
		}
	}
}
