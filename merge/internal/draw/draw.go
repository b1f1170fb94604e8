// Package draw gives random numbers that are a function of a seed, a name and an index, so that they do not depend on
// the order or the number of workers that ask for them.
package draw

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// Key selects a sequence of numbers.
type Key struct {
	a, b uint64
}

// NewKey makes the key of a seed and a name.
func NewKey(seed uint64, name string) Key {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte(name+"\x00"), seed))
	return Key{a: binary.LittleEndian.Uint64(sum[:]), b: binary.LittleEndian.Uint64(sum[8:])}
}

// Bits gives number i of the sequence as 64 random bits: the key and the index through the finalizer of SplitMix64
// (Steele, Lea and Flood, 2014), twice.
func (k Key) Bits(i uint64) uint64 {
	return mix(mix(k.a+i*0x9e3779b97f4a7c15) ^ k.b)
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Uniform gives number i as a value in (0, 1).
func (k Key) Uniform(i uint64) float64 {
	return (float64(k.Bits(i)>>11) + 0.5) / (1 << 53)
}

// Normal gives number i as a draw from the standard normal distribution, by the transform of Box and Muller.
func (k Key) Normal(i uint64) float64 {
	u, v := k.Uniform(2*(i/2)), k.Uniform(2*(i/2)+1)
	r := math.Sqrt(-2 * math.Log(u))
	if i%2 == 0 {
		return r * math.Cos(2*math.Pi*v)
	}
	return r * math.Sin(2*math.Pi*v)
}
