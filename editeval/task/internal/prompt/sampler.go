package prompt

import (
	"fmt"

	"github.com/modelcompress/compress/internal/pyrandom"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// sampler draws examples for a prompt, document after document, as lm-evaluation-harness does with Python's
// random module.
type sampler struct {
	pool  []*pyvalue.Dict
	first bool // the first ones, always
	own   bool // the document itself may be in the pool and is left out
	rnd   *pyrandom.Random
	named string
}

// draw gives the places in the pool of k examples for a document.
func (s *sampler) draw(k int, doc *pyvalue.Dict) ([]int, error) {
	if k == 0 {
		return nil, nil
	}
	if s.first {
		return s.take(k, s.without(doc, s.all()))
	}
	if !s.own {
		return s.sample(k, len(s.pool))
	}

	some, err := s.sample(k+1, len(s.pool))
	if err != nil {
		return nil, err
	}

	if some = s.without(doc, some); len(some) < k { // the document is in the pool more than once
		rest := s.without(doc, s.all())
		places, err := s.sample(k, len(rest))
		if err != nil {
			return nil, err
		}

		some = some[:0]
		for _, p := range places {
			some = append(some, rest[p])
		}
	}

	return s.take(k, some)
}

func (s *sampler) sample(k, n int) ([]int, error) {
	if k > n {
		return nil, fmt.Errorf("%w: %d examples wanted, %s has %d", ErrExamples, k, s.named, n)
	}
	return s.rnd.Sample(n, k), nil
}

func (s *sampler) take(k int, places []int) ([]int, error) {
	if k > len(places) {
		return nil, fmt.Errorf("%w: %d examples wanted, %s has %d", ErrExamples, k, s.named, len(places))
	}
	return places[:k], nil
}

func (s *sampler) all() []int {
	places := make([]int, len(s.pool))
	for i := range places {
		places[i] = i
	}
	return places
}

// without leaves the document out where it may be among the examples.
func (s *sampler) without(doc *pyvalue.Dict, places []int) []int {
	if !s.own {
		return places
	}

	kept := make([]int, 0, len(places))
	for _, p := range places {
		if s.pool[p] != doc && !pyvalue.Equal(s.pool[p], doc) {
			kept = append(kept, p)
		}
	}

	return kept
}
