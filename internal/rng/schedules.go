package rng

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// Token returns the key under which position i of a generated text has its number. A text that was generated
// with a seed is generated again: the seed alone is mixed, not a purpose.
func Token(seed uint64) Key { return Key(Mix(seed)) }

// Sketch returns the key of the signs of a random sketch. Decompositions, and the adapters extracted with them, are
// reproducible in all bits: the seed is multiplied, not mixed.
func Sketch(seed uint64) Key { return Key(seed * 0xbf58476d1ce4e5b9) }

// Order returns 0 … n-1 in the order that a study edits its records in. Studies go on where an earlier version was
// interrupted: the seed itself is the key, and the places are remainders, whose bias is below n/2⁶⁴ as well.
func Order(seed uint64, n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}

	key := Key(seed)
	for i := n - 1; i > 0; i-- {
		j := int(key.Bits(uint64(n-1-i)) % uint64(i+1))
		list[i], list[j] = list[j], list[i]
	}

	return list
}

// Fold mixes numbers into one, the last one innermost. It gives the keys of a merge's random masks, which the
// vector and GPU kernels continue in 32 bits; merges are reproducible in all bytes.
func Fold(first, second, third, last uint64) uint64 {
	return Mix(first ^ Mix(second^Mix(third^Mix(last+golden))))
}

// Wide selects a sequence of numbers by 128 bits of a cryptographic hash: the noise and the gates of mixtures and the
// candidates of searches over merges, whose outputs are reproducible in all bytes.
type Wide struct {
	start, twist uint64
}

// NewWide returns the wide key of a purpose under a seed.
func NewWide(seed uint64, purpose string) Wide {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte(purpose+"\x00"), seed))
	return Wide{start: binary.LittleEndian.Uint64(sum[:]), twist: binary.LittleEndian.Uint64(sum[8:])}
}

// Bits returns number i as 64 random bits.
func (w Wide) Bits(i uint64) uint64 { return Mix(Mix(w.start+i*golden) ^ w.twist) }

// Open returns number i, uniform in the open interval (0, 1).
func (w Wide) Open(i uint64) float64 { return (float64(w.Bits(i)>>11) + 0.5) / (1 << 53) }

// Normal returns number i of a standard normal distribution. Neighbours 2n and 2n+1 are the two coordinates of
// one pair.
func (w Wide) Normal(i uint64) float64 {
	pair := i &^ 1
	radius, angle := boxMuller(w.Open(pair), w.Open(pair+1))
	if i == pair {
		return radius * math.Cos(angle)
	}
	return radius * math.Sin(angle)
}

// Stream is a sequence of numbers that are taken one after the other. Searches over pruning metrics go on from
// the journal of an earlier version: their step is not γ but another odd constant, a multiplier of good spectra
// (Steele and Vigna 2022).
type Stream struct {
	key, taken uint64
}

// NewStream opens the stream of a seed and a path, such as generation, place and attempt.
func NewStream(seed uint64, path ...int) *Stream {
	key := Mix(seed + golden)
	for _, p := range path {
		key = Mix((key ^ Mix(uint64(p)+0x632be59bd9b4e019+golden)) + golden)
	}
	return &Stream{key: key + golden}
}

func (s *Stream) bits() uint64 {
	s.taken++
	return Mix(s.key + s.taken*0xd1342543de82ef95)
}

// Below returns the next number, uniform in 0 … n-1, n > 0.
func (s *Stream) Below(n int) int { return below(s.bits(), n) }

// Float returns the next number, uniform in [0, 1).
func (s *Stream) Float() float64 { return unit(s.bits()) }

// Chance reports true with probability p.
func (s *Stream) Chance(p float64) bool { return s.Float() < p }

// Normal returns a number of a standard normal distribution, from the next two.
func (s *Stream) Normal() float64 {
	u := 1 - s.Float()
	v := s.Float()
	radius, angle := boxMuller(u, v)
	return radius * math.Cos(angle)
}
