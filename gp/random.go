package gp

import "math/bits"

// random is a counter-based generator: draw n of stream key is a hash (SplitMix64, Steele, Lea and Flood 2014) of both, so
// that every child of a search has a stream of its own, whoever makes it and when.
type random struct{ key, n uint64 }

// stream opens the stream of a seed and a path, such as generation, child and attempt.
func stream(seed uint64, path ...int) *random {
	key := mix(seed)
	for _, p := range path {
		key = mix(key ^ mix(uint64(p)+0x632be59bd9b4e019))
	}
	return &random{key: key}
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (r *random) uint64() uint64 {
	r.n++
	return mix(r.key + r.n*0xd1342543de82ef95)
}

// below draws from [0, n), n > 0 (Lemire 2019; the bias of 2^-64·n doesn't matter here).
func (r *random) below(n int) int {
	hi, _ := bits.Mul64(r.uint64(), uint64(n))
	return int(hi)
}

// float draws from [0, 1).
func (r *random) float() float64 { return float64(r.uint64()>>11) * 0x1p-53 }

func (r *random) chance(p float64) bool { return r.float() < p }
