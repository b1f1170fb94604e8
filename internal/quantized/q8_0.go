package quantized

// Q8_0 is f16 d, 32 signed bytes q. The value is d·q.
var Q8_0 = Block{
	Name: "Q8_0", Elements: 32, Bytes: 34, group: 32, halves: []int{0},
	unpack: func(b, q []byte, mul, _ []float32) {
		mul[0] = half(b)
		copy(q[:32], b[2:])
	},

	// The scale is the largest magnitude / 127; ties are rounded away from 0.
	encode: func(dst []byte, x, _ []float32, w *encoder) {
		groups := len(x) / 32
		fastest.extremes(x, w.scale[:groups])
		for i, v := range w.scale[:groups] {
			d := abs(v) / 127
			putHalf(dst[34*i:], d)
			w.mul[i] = reciprocal(d)
		}

		fastest.away(w.q[:len(x)], x, w.mul[:groups])
		for i := range groups {
			copy(dst[34*i+2:][:32], w.q[32*i:])
		}
	},
}
