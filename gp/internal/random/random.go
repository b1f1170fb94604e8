// Package random is a counter-based generator: draw n of a stream is a hash (SplitMix64, Steele, Lea and Flood 2014) of the
// stream's key and n, so that everything that needs randomness has a stream of its own, whoever makes it and when.
package random

import (
	"math"
	"math/bits"
)

// Stream is a sequence of draws.
type Stream struct{ key, n uint64 }

// New opens the stream of a seed and a path, such as generation, place and attempt.
func New(seed uint64, path ...int) *Stream {
	key := mix(seed)
	for _, p := range path {
		key = mix(key ^ mix(uint64(p)+0x632be59bd9b4e019))
	}
	return &Stream{key: key}
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (r *Stream) uint64() uint64 {
	r.n++
	return mix(r.key + r.n*0xd1342543de82ef95)
}

// Below draws from [0, n), n > 0. The bias of n/2^64 doesn't matter here.
func (r *Stream) Below(n int) int {
	hi, _ := bits.Mul64(r.uint64(), uint64(n))
	return int(hi)
}

// Float draws from [0, 1).
func (r *Stream) Float() float64 { return float64(r.uint64()>>11) * 0x1p-53 }

// Chance is true with probability p.
func (r *Stream) Chance(p float64) bool { return r.Float() < p }

// Normal draws from the normal distribution (Box and Muller 1958).
func (r *Stream) Normal() float64 {
	return math.Sqrt(-2*math.Log(1-r.Float())) * math.Cos(2*math.Pi*r.Float())
}
