// Package draw gives random numbers that depend on a seed, a name and a position alone, whatever was drawn before: the
// start values of adapters, their shard lists and the masks of dropout come out the same in every order and on every
// number of threads, and need not be stored.
package draw

import (
	"hash/fnv"
	"math"
	"math/bits"
)

// Key is a seed for one purpose.
type Key uint64

// NewKey makes the key of a name under a seed.
func NewKey(seed uint64, name string) Key {
	h := fnv.New64a()
	h.Write([]byte(name))
	return Key(mix(mix(seed+0x9e3779b97f4a7c15) ^ h.Sum64()))
}

// With gives a key for a number under this one, such as a step.
func (k Key) With(n uint64) Key { return Key(mix(uint64(k) ^ mix(n+0x9e3779b97f4a7c15))) }

// At is 64 random bits for position i: SplitMix64 started at the key.
func (k Key) At(i uint64) uint64 { return mix(uint64(k) + (i+1)*0x9e3779b97f4a7c15) }

// mix is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Float is uniform in [0, 1), with 53 bits.
func (k Key) Float(i uint64) float64 { return float64(k.At(i)>>11) / (1 << 53) }

// Uniform fills x with values of [-bound, bound).
func (k Key) Uniform(x []float32, bound float64) {
	for i := range x {
		x[i] = float32((2*k.Float(uint64(i)) - 1) * bound)
	}
}

// Normal fills x with values of a normal distribution around 0 (Box and Muller).
func (k Key) Normal(x []float32, deviation float64) {
	for i := range x {
		u, v := 1-k.Float(uint64(2*i)), k.Float(uint64(2*i+1)) // u is never 0
		x[i] = float32(deviation * math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v))
	}
}

// Below is uniform in 0 … n-1 (Lemire's product; the bias is below n/2⁶⁴).
func (k Key) Below(i uint64, n int) int {
	hi, _ := bits.Mul64(k.At(i), uint64(n))
	return int(hi)
}

// Shuffle orders x at random.
func (k Key) Shuffle(x []int32) {
	for i := len(x) - 1; i > 0; i-- {
		j := k.Below(uint64(i), i+1)
		x[i], x[j] = x[j], x[i]
	}
}

// Permutation is 0 … n-1 in random order.
func (k Key) Permutation(n int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(i)
	}
	k.Shuffle(x)
	return x
}
