package quantized

// Q4_1 is f16 d, f16 m, 16 bytes of q as in [Q4_0]. The value is d·q + m.
var Q4_1 = Block{
	Name: "Q4_1", Elements: 32, Bytes: 20, group: 32, offset: true, halves: []int{0, 2},
	unpack: func(b, q []byte, mul, sub []float32) {
		mul[0] = half(b)
		sub[0] = -half(b[2:])
		nibbles(q, b[4:])
	},

	weighted: true, rowSquare: true,
	encode: func(dst []byte, x, importance []float32, w *encoder) {
		encodeOffset(smallOffset4, x, importance, w)
		for i := range len(x) / 32 {
			b := dst[20*i:][:20]
			putHalf(b, w.scale[i])
			putHalf(b[2:], -w.low[i])
			putNibbles(b[4:], w.q[32*i:])
		}
	},
}
