// Package rng gives random numbers that are a function of a key and a position alone, so that they are the same
// in every order of asking and for every number of workers, and need not be stored.
//
// There is one generator: number i of a [Key] is Mix(key + (i+1)·γ), γ being the golden ratio's fraction in 64
// bits, which is what SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) gives as its i-th number when its state
// starts at the key. A statistical generator: nothing here withstands somebody who wants to guess its numbers.
// There is one way to normal numbers, the transform of Box and Muller (1958).
//
// New code calls [New] and, for numbers within numbers such as the steps of a run, [Key.With]. What else
// derives a key, or walks one differently, stands in schedules.go: each is a promise that was given to outputs
// of an earlier version, which a seed has to reproduce bit for bit.
//
// Two relatives are at home elsewhere: Python's Mersenne Twister, for results of evaluations that are compared
// with those of Python programs, and the 32-bit hash of merge/internal/vec, which is part of a vector kernel.
package rng

import (
	"hash/fnv"
	"math"
	"math/bits"
)

// golden is γ, the step of SplitMix64: 2⁶⁴ divided by the golden ratio, made odd.
const golden = 0x9e3779b97f4a7c15

// Mix is the finaliser of SplitMix64: a bijection in which every bit of x reaches every bit of the result.
func Mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Key selects a sequence of numbers.
type Key uint64

// New returns the key of a purpose, such as a tensor's name, under a seed.
func New(seed uint64, purpose string) Key {
	h := fnv.New64a()
	h.Write([]byte(purpose))
	return Key(Mix(Mix(seed+golden) ^ h.Sum64()))
}

// With returns the key of a number under this one, such as a step.
func (k Key) With(n uint64) Key { return Key(Mix(uint64(k) ^ Mix(n+golden))) }

// Bits returns number i as 64 random bits.
func (k Key) Bits(i uint64) uint64 { return Mix(uint64(k) + (i+1)*golden) }

// Float returns number i, uniform in [0, 1) with 53 bits.
func (k Key) Float(i uint64) float64 { return unit(k.Bits(i)) }

// Below returns number i, uniform in 0 … n-1, n > 0.
func (k Key) Below(i uint64, n int) int { return below(k.Bits(i), n) }

// Sign returns number i as +1 or -1: its highest bit clear or set.
func (k Key) Sign(i uint64) float64 {
	if k.Bits(i)>>63 == 0 {
		return 1
	}
	return -1
}

// FillUniform fills x with values of [-bound, bound).
func (k Key) FillUniform(x []float32, bound float64) {
	for i := range x {
		x[i] = float32((2*k.Float(uint64(i)) - 1) * bound)
	}
}

// FillNormal fills x with values of a normal distribution around 0.
func (k Key) FillNormal(x []float32, deviation float64) {
	for i := range x {
		radius, angle := boxMuller(1-k.Float(uint64(2*i)), k.Float(uint64(2*i+1)))
		x[i] = float32(deviation * radius * math.Cos(angle))
	}
}

// Shuffle puts x into random order (Fisher and Yates).
func (k Key) Shuffle(x []int32) {
	for i := len(x) - 1; i > 0; i-- {
		j := k.Below(uint64(i), i+1)
		x[i], x[j] = x[j], x[i]
	}
}

// Permutation returns 0 … n-1 in random order.
func (k Key) Permutation(n int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(i)
	}

	k.Shuffle(x)
	return x
}

// Dropout writes x with every element dropped with probability p, and the others divided by 1-p, to dst.
// Element i of x is at position base+i of the key; four neighbours share 64 bits, so p is rounded to a multiple
// of 2⁻¹⁶. base must be a multiple of 4. dst may be x.
func (k Key) Dropout(dst, x []float32, base uint64, p float64) {
	bar, keep := uint16(min(p*(1<<16)+0.5, 1<<16-1)), float32(1/(1-p))

	for i := 0; i < len(x); i += 4 {
		bits := k.Bits((base + uint64(i)) / 4)
		for j := i; j < min(i+4, len(x)); j++ {
			v := x[j] * keep
			if uint16(bits) < bar {
				v = 0
			}
			dst[j] = v
			bits >>= 16
		}
	}
}

// unit makes a number of [0, 1) of the upper 53 bits.
func unit(bits uint64) float64 { return float64(bits>>11) / (1 << 53) }

// below makes a number of 0 … n-1: the upper half of a product (Lemire 2019), without the rejection that would
// take away its bias, which is less than n/2⁶⁴.
func below(random uint64, n int) int {
	hi, _ := bits.Mul64(random, uint64(n))
	return int(hi)
}

// boxMuller returns the polar coordinates of a pair of independent normal numbers, from u, uniform in (0, 1],
// and v: the numbers are the radius times the cosine and the sine of the angle.
func boxMuller(u, v float64) (radius, angle float64) {
	return math.Sqrt(-2 * math.Log(u)), 2 * math.Pi * v
}
