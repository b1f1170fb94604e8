package quantized

import "slices"

// Blocks of 32 elements with one scale, and those with a minimum. Without an importance the scale follows from the
// extreme elements alone; with one it is searched for, and the weight of an element is
// importance·√(mean square of its row + x²).

// The searches with an importance.
var (
	smallOffset4    = newOffsetSearch(15, -.9, .05, 36, false)
	smallOffset5    = newOffsetSearch(31, -.9, .05, 36, false)
	smallSymmetric4 = newSymmetricSearch(8)
	smallSymmetric5 = newSymmetricSearch(16)
)

// encodeSymmetric finds w.scale and w.q of blocks with the value scale·(q - half).
func encodeSymmetric(s *symmetricSearch, x, importance []float32, w *encoder) {
	if importance != nil {
		fastest.weigh(w.weights[:], x, importance, w.square)
		s.run(w, x, 32, given)
		for i := range len(x) / 32 {
			s.round(w.q[32*i:], x[32*i:][:32], w.fits[i])
		}
		return
	}

	groups := len(x) / 32
	fastest.extremes(x, w.scale[:groups])
	for i, v := range w.scale[:groups] {
		if v == 0 {
			v = 0 // which zero came first does not matter
		}
		d := v / float32(-s.half)
		w.scale[i] = d
		w.mul[i] = reciprocal(d)
	}
	clear(w.low[:groups])
	fastest.truncate(w.q[:len(x)], x, w.low[:groups], w.mul[:groups], float32(s.half)+.5, 2*s.half-1)
}

// encodeOffset finds w.scale, w.low and w.q of blocks with the value scale·q - low.
func encodeOffset(s *offsetSearch, x, importance []float32, w *encoder) {
	if importance != nil {
		fastest.weigh(w.weights[:], x, importance, w.square)
		s.run(w, x, 32, given)
		for i := range len(x) / 32 {
			s.round(w.q[32*i:], x[32*i:][:32], w.fits[i])
		}
		return
	}

	groups := len(x) / 32
	fastest.bounds32(x, w.sub[:groups], w.mul[:groups])
	for i, least := range w.sub[:groups] {
		if least == 0 { // the zero that came first is stored, with its sign
			least = firstZero(x[32*i:][:32])
			w.sub[i] = least
		}
		d := (w.mul[i] - least) / float32(s.top)
		if d == 0 {
			d = 0
		}
		w.scale[i] = d
		w.low[i] = -least
		w.mul[i] = reciprocal(d)
	}
	fastest.truncate(w.q[:len(x)], x, w.sub[:groups], w.mul[:groups], .5, s.top)
}

// firstZero is the first zero of x, which has one.
func firstZero(x []float32) float32 {
	return x[slices.Index(x, 0)]
}

// putNibbles writes the lower halves of 32 numbers as [nibbles] reads them.
func putNibbles(b, q []byte) {
	from := (*[32]byte)(q)
	to := (*[16]byte)(b)
	store(to[:], load(from[:])&low4|load(from[16:])&low4<<4)
	store(to[8:], load(from[8:])&low4|load(from[24:])&low4<<4)
}

// putFifth writes bit 4 of 32 numbers as [spread] reads them.
func putFifth(b, q []byte) {
	for i := range 4 {
		b[i] = gather(load(q[8*i:]) >> 4)
	}
}

// gather takes the lowest bits of eight bytes together, the first byte's lowest.
func gather(v uint64) byte {
	// The factor moves bit 8·i to bit 56 + i, and no two others to the same place.
	return byte(v & ones * 0x0102040810204080 >> 56)
}
