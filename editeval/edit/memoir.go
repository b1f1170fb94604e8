package edit

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// MEMOIR (Wang et al., arXiv 2506.07899) puts a matrix of zeros beside a down-projection, y = W·x + M·(m∘x), and lets
// every fact write into a few of its columns: those that the largest inputs name, less what ordinary text has there,
// through a random permutation that is always the same ("TopHash"). The set m of the columns is the fact's key. A row
// whose own columns share enough of them with the nearest key is answered through that key's columns, any other one
// through none.
//
// The publication names a prompt by the mean over its tokens, and answers at all of them. Here each row names itself
// (see sidecar), and a fact has a key for each row that learns it.

// learn takes in the keys of a step.
func (s *sideMemory) learn(l lm.Linear, p *Part) (fits bool, err error) {
	if s.steps == 0 {
		if p.Center == nil || p.Top < 1 || p.Top > l.In || !(p.Threshold >= 0 && p.Threshold <= 1) {
			return false, nil
		}
		c, err := p.Center.unpack()
		if err != nil || c.Rows != 1 || c.Cols != l.In {
			return false, err
		}
		s.center = c.Row(0)
		s.top, s.threshold = p.Top, p.Threshold
		s.places = placesOf(p.Seed, l.In)
	}

	for _, text := range p.Keys {
		key := setOf(text)
		if len(text) != (l.In+7)/8 || key.size() != s.top || l.In%8 != 0 && text[len(text)-1]>>(l.In%8) != 0 {
			return false, nil
		}
		s.keys = append(s.keys, key)
	}
	return len(p.Keys) > 0 && p.Shard == 0, nil
}

// name is the set of columns that a row names: of equal inputs those of the lower index.
func (s *sideMemory) name(x []float64) bitset {
	far := make([]float64, len(x))
	order := make([]int, len(x))
	for i, v := range x {
		far[i], order[i] = math.Abs(v-s.center[i]), i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(far[b], far[a]), cmp.Compare(a, b)) })

	set := make(bitset, (len(x)+63)/64)
	for _, i := range order[:s.top] {
		at := s.places[i]
		set[at/64] |= 1 << (at % 64)
	}
	return set
}

// nearestKey is the key that shares most with a set, of equal ones the first, and the fraction that it shares.
func (s *sideMemory) nearestKey(set bitset) (bitset, float64) {
	var best bitset
	most := -1
	for _, k := range s.keys {
		if n := k.common(set); n > most {
			best, most = k, n
		}
	}
	return best, float64(most) / float64(s.top)
}

// recalled is what a row gets; nil where the memory has nothing for it.
func (s *sideMemory) recalled(x, y []float64) []float64 {
	key, share := s.nearestKey(s.name(x))
	if key == nil || share < s.threshold {
		return nil
	}
	return site.Plus(y, 1, s.shards[0].times(only(x, key)))
}

// only is x where a set has members, otherwise 0.
func only(x []float64, set bitset) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		if set.has(i) {
			out[i] = v
		}
	}
	return out
}

// memoir teaches the memory one fact, by gradient descent on the columns that its rows name, whose gradient is cut to
// length 1. What a row reads does not change meanwhile, so the change is Σ gradient·inputᵀ over a few rows.
func memoir(ctx context.Context, e *Editing, reqs []Encoded) (*change, error) {
	l, err := site.Linear(e.m, e.hp.Layers[0], arch.Down)
	if err != nil {
		return nil, err
	}

	side, part, err := e.side(ctx, l, kindMEMOIR)
	if err != nil {
		return nil, err
	}

	t, err := e.lesson(ctx, l, &reqs[0])
	if err != nil {
		return nil, err
	}
	defer t.free()

	for i := range t.each {
		part.Keys = append(part.Keys, side.name(t.keys.Row(i)).bytes(l.In))
	}

	// Through the columns of the bare prompt's key, whatever prefix stands before it.
	inputs := linalg.New(len(t.rows), l.In)
	known := linalg.New(len(t.rows), l.Out)
	for i := range t.rows {
		copy(inputs.Row(i), only(t.keys.Row(i), setOf(part.Keys[i%t.each])))
		if len(side.shards) > 0 {
			copy(known.Row(i), side.shards[0].times(inputs.Row(i)))
		}
	}

	gram := e.gram(inputs, inputs)
	learnt := linalg.New(len(t.rows), l.Out)
	give := func() linalg.Matrix {
		add := known.Clone()
		e.solver.Mul(add, gram, learnt, linalg.Product{Accumulate: true})
		return add
	}
	losses, err := t.descend(ctx, give, func() float64 { return 0 }, func(grads linalg.Matrix) {
		rate := e.hp.LearningRate * e.clip(productNorm(e.gram(grads, grads), gram))
		for i, v := range grads.Data {
			learnt.Data[i] -= rate * v
		}
	})
	if err != nil {
		return nil, err
	}

	part.Left, part.Right = pack(learnt.T(), false), pack(inputs.T(), false)
	return &change{part: part, losses: [][]float64{losses}}, nil
}

// clip is what a gradient of some length is multiplied by.
func (e *Editing) clip(length float64) float64 {
	if e.hp.Clip == 0 || length <= e.hp.Clip {
		return 1
	}
	return e.hp.Clip / length
}

// productNorm is ‖AᵀB‖ of matrices with these inner products of rows.
func productNorm(a, b linalg.Matrix) float64 {
	sum := 0.0
	for i, v := range a.Data {
		sum += v * b.Data[i]
	}
	return math.Sqrt(max(sum, 0))
}
