// Package sample draws tokens from logits.
package sample

import (
	"cmp"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
)

// Sampler draws tokens.
type Sampler struct {
	Temperature float64 // 0: always the most likely token
	TopP        float64 // only the most likely tokens whose probabilities add up to p; 0 or 1: all
	TopK        int     // only the k most likely tokens; 0: all
	Seed        uint64

	order []candidate
}

type candidate struct {
	id int32
	p  float64
}

// Next draws the token at a position. The draw depends on the seed, the position and the logits alone; of equal
// logits the lower id wins. False: the largest logit is not a finite number.
func (s *Sampler) Next(logits []float32, position int) (int32, bool) {
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
	if s.Temperature == 0 {
		return int32(best), true
	}

	s.weigh(logits, top)
	s.cut()
	total := 0.0
	for _, c := range s.order {
		total += c.p
	}

	left := rng.Token(s.Seed).Float(uint64(position)) * total
	for _, c := range s.order {
		if left -= c.p; left < 0 {
			return c.id, true
		}
	}

	return s.order[len(s.order)-1].id, true
}

// weigh makes the candidates, in the order of ids, or the most likely first where only some of them stay.
func (s *Sampler) weigh(logits []float32, top float64) {
	s.order = s.order[:0]
	for i, v := range logits {
		if p := math.Exp((float64(v) - top) / s.Temperature); p > 0 {
			s.order = append(s.order, candidate{int32(i), p})
		}
	}

	if s.TopK > 0 || s.TopP > 0 && s.TopP < 1 {
		slices.SortFunc(s.order, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(b.p, a.p),
				cmp.Compare(a.id, b.id))
		})
	}
}

// cut keeps the first k candidates, then the first whose probabilities reach p.
func (s *Sampler) cut() {
	if k := s.TopK; k > 0 && k < len(s.order) {
		s.order = s.order[:k]
	}
	if s.TopP == 0 || s.TopP == 1 {
		return
	}

	total, sum := 0.0, 0.0
	for _, c := range s.order {
		total += c.p
	}

	for i, c := range s.order {
		if sum += c.p; sum >= s.TopP*total {
			s.order = s.order[:i+1]
			return
		}
	}
}
