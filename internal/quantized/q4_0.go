package quantized

// Q4_0 is f16 d, 16 bytes of q: the low nibbles are the first 16 elements, the high ones the last 16. The value is
// d·(q - 8).
var Q4_0 = Block{
	Name: "Q4_0", Elements: 32, Bytes: 18, group: 32, halves: []int{0},
	unpack: func(b, q []byte, mul, _ []float32) {
		mul[0] = half(b)
		x := load(b[2:])
		y := load(b[10:])
		to := (*[32]byte)(q)
		store(to[:], minus(x&low4, 8))
		store(to[8:], minus(y&low4, 8))
		store(to[16:], minus(x>>4&low4, 8))
		store(to[24:], minus(y>>4&low4, 8))
	},

	weighted: true, rowSquare: true,
	encode: func(dst []byte, x, importance []float32, w *encoder) {
		encodeSymmetric(smallSymmetric4, x, importance, w)
		for i := range len(x) / 32 {
			b := dst[18*i:][:18]
			putHalf(b, w.scale[i])
			putNibbles(b[2:], w.q[32*i:])
		}
	},
}
