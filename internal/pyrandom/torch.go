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

// manyElements is the number of elements from which on torch.randperm shuffles in another way.
const manyElements = math.MaxUint32 / 20

// Permutation returns the first k elements of torch.randperm(n) on a CPU, with the stream as its generator. Fewer than
// 2³²/20 elements are shuffled from the front, and only k draws are needed; more are shuffled inside out with 64 bits
// each, where the last of n draws may still change the first element. Memory goes by k. It panics unless 0 ≤ k ≤ n.
func (r *Random) Permutation(n, k int) []int {
	if k < 0 || k > n {
		panic("pyrandom: more elements than there are")
	}
	if n >= manyElements {
		return r.insideOut(n, k)
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
			other += int(uint64(r.Uint32()) % uint64(n-i))
		}
		list[i] = at(other)
		moved[other] = at(i)
		delete(moved, i) // which no later draw reaches
	}
	return list
}

// insideOut begins a permutation of n elements: element i takes a place among the first i+1, and what was there goes to
// place i.
func (r *Random) insideOut(n, k int) []int {
	list := make([]int, k)
	if k == 0 {
		return list
	}
	for i := range n {
		high := uint64(r.Uint32())
		place := int((high<<32 | uint64(r.Uint32())) % uint64(i+1))
		if place >= k {
			continue
		}
		if i < k {
			list[i] = list[place]
		}
		list[place] = i
	}
	return list
}
