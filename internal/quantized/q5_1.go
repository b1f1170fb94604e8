package quantized

// Q5_1 is f16 d, f16 m, 32 bits that are bit 4 of each q, 16 bytes of the lower bits as in [Q4_0]. The value is
// d·q + m.
var Q5_1 = Block{
	Name: "Q5_1", Elements: 32, Bytes: 24, group: 32, offset: true, halves: []int{0, 2},
	unpack: func(b, q []byte, mul, sub []float32) {
		mul[0] = half(b)
		sub[0] = -half(b[2:])
		x := load(b[8:])
		y := load(b[16:])
		to := (*[32]byte)(q)
		store(to[:], x&low4|spread(b[4])<<4)
		store(to[8:], y&low4|spread(b[5])<<4)
		store(to[16:], x>>4&low4|spread(b[6])<<4)
		store(to[24:], y>>4&low4|spread(b[7])<<4)
	},

	weighted: true, rowSquare: true,
	encode: func(dst []byte, x, importance []float32, w *encoder) {
		encodeOffset(smallOffset5, x, importance, w)
		for i := range len(x) / 32 {
			b := dst[24*i:][:24]
			putHalf(b, w.scale[i])
			putHalf(b[2:], -w.low[i])
			putFifth(b[4:], w.q[32*i:])
			putNibbles(b[8:], w.q[32*i:])
		}
	},
}
