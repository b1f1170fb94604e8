package pyrandom

import "math"

// NewTorch returns the stream of torch.Generator().manual_seed(seed) on a CPU: the same generator, seeded by one word.
func NewTorch(seed uint64) *Random {
	r := new(Random)
	s := &r.state
	s[0] = uint32(seed)
	for i := 1; i < stateSize; i++ {
		s[i] = 1812433253*(s[i-1]^s[i-1]>>30) + uint32(i)
	}
	r.next = stateSize
	return r
}

// Permutation returns the first k elements of torch.randperm(n) on a CPU, with the stream as its generator: a shuffle
// from the front, with remainders of 32 bits. From 2³²/20 elements on it takes 64 bits, and torch 2.15 gives another
// permutation. Memory goes by k. It panics unless 0 ≤ k ≤ n.
func (r *Random) Permutation(n, k int) []int {
	if k < 0 || k > n {
		panic("pyrandom: more elements than there are")
	}

	moved := make(map[int]int, 2*k) // what lies elsewhere than at its own place
	at := func(i int) int {
		if v, ok := moved[i]; ok {
			return v
		}
		return i
	}

	list := make([]int, k)
	for i := range list {
		other := i
		if i < n-1 { // the last one draws nothing
			other += int(r.remainder(uint64(n), uint64(n-i)))
		}
		list[i] = at(other)
		moved[other] = at(i)
		delete(moved, i) // which no later draw reaches
	}
	return list
}

func (r *Random) remainder(n, below uint64) uint64 {
	if n < math.MaxUint32/20 {
		return uint64(r.Uint32()) % below
	}
	high := uint64(r.Uint32())
	return (high<<32 | uint64(r.Uint32())) % below
}
