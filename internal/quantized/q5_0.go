package quantized

// Q5_0 is f16 d, 32 bits that are bit 4 of each q, 16 bytes of the lower bits as in [Q4_0]. The value is d·(q - 16).
var Q5_0 = Block{
	Name: "Q5_0", Elements: 32, Bytes: 22, group: 32, halves: []int{0},
	unpack: func(b, q []byte, mul, _ []float32) {
		mul[0] = half(b)
		x := load(b[6:])
		y := load(b[14:])
		to := (*[32]byte)(q)
		store(to[:], minus(x&low4|spread(b[2])<<4, 16))
		store(to[8:], minus(y&low4|spread(b[3])<<4, 16))
		store(to[16:], minus(x>>4&low4|spread(b[4])<<4, 16))
		store(to[24:], minus(y>>4&low4|spread(b[5])<<4, 16))
	},

	weighted: true, rowSquare: true,
	encode: func(dst []byte, x, importance []float32, w *encoder) {
		encodeSymmetric(smallSymmetric5, x, importance, w)
		for i := range len(x) / 32 {
			b := dst[22*i:][:22]
			putHalf(b, w.scale[i])
			putFifth(b[2:], w.q[32*i:])
			putNibbles(b[6:], w.q[32*i:])
		}
	},
}
