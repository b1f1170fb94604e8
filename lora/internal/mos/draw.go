package mos

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Draw makes the lists of all blocks. Without dissociation B has the lists of A.
func (p *Pool) Draw(seed uint64, way adapter.Sampling, dissociate bool) error {
	lists, err := p.sampler(way)
	if err != nil {
		return err
	}

	p.IndexA = lists(rng.New(seed, p.A.Name+".index"))
	p.IndexB = p.IndexA
	if dissociate {
		p.IndexB = lists(rng.New(seed, p.B.Name+".index"))
	}

	return nil
}

func (p *Pool) sampler(way adapter.Sampling) (func(rng.Key) []int32, error) {
	switch way {
	case adapter.Official:
		return func(k rng.Key) []int32 {
			return p.lists(func(block int) []int32 { return k.With(uint64(block)).Permutation(p.Public()) })
		}, nil
	case adapter.Balanced:
		return func(k rng.Key) []int32 { return p.lists(p.balanced(k)) }, nil
	case adapter.Pure:
		return func(rng.Key) []int32 {
			return p.lists(func(int) []int32 {
				x := make([]int32, p.Public())
				for i := range x {
					x[i] = int32(i)
				}
				return x
			})
		}, nil
	}

	return nil, fmt.Errorf("%w: sampling %.100q; known: %s, %s, %s", adapter.ErrConfig, way, adapter.Official,
		adapter.Balanced, adapter.Pure)
}

// lists puts the public part of each block, the first entries of what order gives, and its private rows together.
func (p *Pool) lists(order func(block int) []int32) []int32 {
	index := make([]int32, 0, p.Blocks*p.List())
	own := p.Private * p.Shards
	for k := range p.Blocks {
		index = append(index, order(k)[:p.List()-own]...)
		for i := range own {
			index = append(index, int32(p.Public()+k*own+i))
		}
	}
	return index
}

// balanced orders the public rows for each block in turn by how often they were used, at random among equals:
// after any number of blocks no row was used more than once more often than another.
func (p *Pool) balanced(key rng.Key) func(block int) []int32 {
	uses := make([]int, p.Public())
	return func(block int) []int32 {
		// Stable, so that rows that were used equally often stay in the random order.
		k := key.With(uint64(block))
		rows := k.Permutation(p.Public())
		slices.SortStableFunc(rows, func(a, b int32) int { return cmp.Compare(uses[a], uses[b]) })

		chosen := rows[:(p.Rank-p.Private)*p.Shards]
		for _, row := range chosen {
			uses[row]++
		}

		// Or the rows used least would always come first, and be joined to one vector.
		k.With(1).Shuffle(chosen)
		return rows
	}
}
