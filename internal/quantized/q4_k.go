package quantized

// Q4_K is f16 d, f16 dmin, 12 bytes of scales, 128 bytes of q. Of every 64 elements, 32 bytes have the first half in
// their low nibbles and the second in the high ones. There are a scale sc and a minimum m of six bits for 32 elements.
// The value is (d·sc)·q - dmin·m.
var Q4_K = Block{
	Name: "Q4_K", Elements: 256, Bytes: 144, group: 32, offset: true, halves: []int{0, 2},
	unpack: func(b, q []byte, mul, sub []float32) {
		scalesAndMinima(b, mul, sub)
		for part := range 4 {
			for i := 0; i < 32; i += 8 {
				x := load(b[16+32*part+i:])
				store(q[64*part+i:], x&low4)
				store(q[64*part+32+i:], x>>4&low4)
			}
		}
	},

	weighted: true,
	encode: func(dst []byte, x, importance []float32, w *encoder) {
		offsetSuperblocks(&q4Super, dst, x, importance, w)
	},
}

var q4Super = superOffset{
	bytes: 144, group: 32, top: 63, factor: 2, plain: q4Search, weighted: q4Weighted, weights: spread32,
	put: putScalesAndMinima, scales: scalesAndMinima,
	codes: func(b, q []byte) { putHalves(b[16:], q) },
}

// putHalves writes the lower halves of 256 numbers: of every 64, 32 bytes have the first 32 in their low nibbles and
// the others in the high ones.
func putHalves(b, q []byte) {
	for part := range 4 {
		for i := 0; i < 32; i += 8 {
			store(b[32*part+i:], load(q[64*part+i:])&low4|load(q[64*part+32+i:])&low4<<4)
		}
	}
}

// scalesAndMinima reads the first 16 bytes of a block of [Q4_K] and [Q5_K]: f16 d, f16 dmin, and eight pairs of six
// bits. The first four bytes have the scales 0 to 3 and the next four the minima in their lower six bits; those of the
// last four have the lower four bits of scale and minimum 4 to 7, whose upper two bits are those of the first eight.
func scalesAndMinima(b []byte, mul, sub []float32) {
	d := half(b)
	dmin := half(b[2:])
	s := b[4:16]
	for j := range 4 {
		mul[j] = d * float32(s[j]&63)
		sub[j] = dmin * float32(s[4+j]&63)
		mul[4+j] = d * float32(s[8+j]&15|s[j]>>6<<4)
		sub[4+j] = dmin * float32(s[8+j]>>4|s[4+j]>>6<<4)
	}
}

// putScalesAndMinima writes what [scalesAndMinima] reads, of integers up to 63. Of greater ones, which come of rounding
// errors, it makes what the reference makes of them.
func putScalesAndMinima(b []byte, d, dmin float32, w *encoder) {
	putHalf(b, d)
	putHalf(b[2:], dmin)
	s := b[4:16]
	for j := range 4 {
		s[j] = w.levels[j] | w.levels[4+j]>>4<<6
		s[4+j] = w.lows[j] | w.lows[4+j]>>4<<6
		s[8+j] = w.levels[4+j]&15 | w.lows[4+j]<<4
	}
}
