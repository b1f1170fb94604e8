// Package pyrandom draws random numbers as CPython's random module does, bit for bit, for the places where a published
// result can only be reproduced with the draws it was made with: calibration windows, few-shot examples, document
// orders. Everything else in this project draws from counter-based generators.
//
// The generator is the 32-bit Mersenne Twister MT19937 (M. Matsumoto and T. Nishimura, "Mersenne Twister: a
// 623-dimensionally equidistributed uniform pseudo-random number generator", ACM TOMACS 8, 1998) with the seeding by
// array of the authors' revision of 2002. How integers, floats, shuffles and samples are made of its output follows the
// documented behaviour of Python 3.11's random module; golden values in the tests were made with CPython.
package pyrandom

import (
	"math/big"
	"math/bits"
)

const (
	stateSize = 624 // words of state
	shiftSize = 397 // distance of the recurrence
)

// Random is one stream of draws: Python's random.Random. It is not safe for concurrent use.
type Random struct {
	state [stateSize]uint32
	next  int // index of the next word; stateSize: the state has to be renewed
}

// NewRandom returns the stream of random.Random(seed).
func NewRandom(seed uint64) *Random { return NewRandomBig(new(big.Int).SetUint64(seed)) }

// NewRandomBig returns the stream of random.Random(seed) for an integer of any size. Python seeds with the absolute
// value: seeds of opposite sign give the same stream.
func NewRandomBig(seed *big.Int) *Random {
	rest := new(big.Int).Abs(seed)
	low := new(big.Int)
	mask := new(big.Int).SetUint64(1<<32 - 1)
	var key []uint32
	for rest.Sign() > 0 {
		key = append(key, uint32(low.And(rest, mask).Uint64()))
		rest.Rsh(rest, 32)
	}

	if len(key) == 0 {
		key = []uint32{0}
	}

	r := new(Random)
	r.seed(key)
	return r
}

// seed is init_by_array of the reference implementation.
func (r *Random) seed(key []uint32) {
	s := &r.state
	s[0] = 19650218
	for i := 1; i < stateSize; i++ {
		s[i] = 1812433253*(s[i-1]^s[i-1]>>30) + uint32(i)
	}

	i, j := 1, 0
	for range max(stateSize, len(key)) {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*1664525) + key[j] + uint32(j)
		i, j = r.after(i), (j+1)%len(key)
	}

	for range stateSize - 1 {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*1566083941) - uint32(i)
		i = r.after(i)
	}

	s[0] = 1 << 31
	r.next = stateSize
}

// after is the place after i in the seeding's walk over the state, which starts anew from the last word.
func (r *Random) after(i int) int {
	if i+1 < stateSize {
		return i + 1
	}
	r.state[0] = r.state[stateSize-1]
	return 1
}

// renew computes the next stateSize words.
func (r *Random) renew() {
	s := &r.state
	for i := range s {
		y := s[i]&(1<<31) | s[(i+1)%stateSize]&(1<<31-1)
		s[i] = s[(i+shiftSize)%stateSize] ^ y>>1 ^ -(y&1)&0x9908b0df
	}
	r.next = 0
}

// Uint32 returns the next 32 bits: getrandbits(32).
func (r *Random) Uint32() uint32 {
	if r.next == stateSize {
		r.renew()
	}
	y := r.state[r.next]
	r.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// Bits returns k random bits, 0 ≤ k ≤ 64: getrandbits(k). Words fill up from the low end; of the last one the high bits
// are used. It panics for other k.
func (r *Random) Bits(k int) uint64 {
	switch {
	case k < 0 || k > 64:
		panic("canon: number of bits outside 0 to 64")
	case k == 0:
		return 0
	case k <= 32:
		return uint64(r.Uint32() >> (32 - k))
	}

	low := uint64(r.Uint32())
	return low | uint64(r.Uint32()>>(64-k))<<32
}

// Float64 returns a number in [0, 1) with 53 random bits: random().
func (r *Random) Float64() float64 {
	high, low := r.Uint32()>>5, r.Uint32()>>6
	return (float64(high)*(1<<26) + float64(low)) / (1 << 53)
}

// below draws from [0, n), n > 0, by rejection.
func (r *Random) below(n uint64) uint64 {
	k := bits.Len64(n)
	v := r.Bits(k)
	for v >= n {
		v = r.Bits(k)
	}
	return v
}

// Below returns an integer in [0, n): randrange(n). It is also the index that choice takes from n elements. It panics
// unless n > 0.
func (r *Random) Below(n int) int {
	if n <= 0 {
		panic("canon: empty range")
	}
	return int(r.below(uint64(n)))
}

// RandInt returns an integer in [lo, hi], both included: randint(lo, hi). It panics when lo > hi, or when the range
// has 2⁶⁴ members.
func (r *Random) RandInt(lo, hi int) int {
	n := uint64(hi) - uint64(lo) + 1
	if lo > hi || n == 0 {
		panic("canon: empty range, or one of all integers")
	}
	return lo + int(r.below(n))
}

// RandRange returns one of start, start+step, … short of stop: randrange(start, stop, step). It panics when there is
// none or step is 0.
func (r *Random) RandRange(start, stop, step int) int {
	var n uint64
	switch {
	case step > 0 && stop > start:
		n = (uint64(stop)-uint64(start)-1)/uint64(step) + 1
	case step < 0 && stop < start:
		n = (uint64(start)-uint64(stop)-1)/-uint64(step) + 1
	default:
		panic("canon: empty range")
	}

	return start + step*int(r.below(n))
}

// Shuffle permutes n elements through swap: shuffle(x).
func (r *Random) Shuffle(n int, swap func(i, j int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, r.Below(i+1))
	}
}

// Choices returns the positions of k draws with replacement from n elements, n > 0: choices(range(n), k=k).
func (r *Random) Choices(n, k int) []int {
	if n <= 0 {
		panic("canon: empty range")
	}
	out := make([]int, k)
	for i := range out {
		out[i] = int(r.Float64() * float64(n))
	}
	return out
}

// Sample returns k different positions out of n, in the order drawn: sample(range(n), k). It panics unless 0 ≤ k ≤ n.
// Like Python it draws from a shrinking pool where n is small beside k, and otherwise redraws what it has already.
func (r *Random) Sample(n, k int) []int {
	if k < 0 || k > n {
		panic("canon: sample larger than the population, or negative")
	}

	out := make([]int, k)
	if n <= poolLimit(k) {
		pool := make([]int, n)
		for i := range pool {
			pool[i] = i
		}

		for i := range out {
			j := r.Below(n - i)
			out[i] = pool[j]
			pool[j] = pool[n-i-1]
		}

		return out
	}

	seen := make(map[int]bool, k)
	for i := range out {
		j := r.Below(n)
		for seen[j] {
			j = r.Below(n)
		}
		seen[j] = true
		out[i] = j
	}

	return out
}

// poolLimit is the largest population that Python samples k of from a pool: 21, and for k > 5 the smallest power of 4
// that is at least 3k on top.
func poolLimit(k int) int {
	limit := 21
	if k > 5 {
		power := 4
		for power/3 < k { // 3k is no power of 4, so that power ≥ 3k and power/3 ≥ k agree
			power *= 4
		}
		limit += power
	}
	return limit
}
