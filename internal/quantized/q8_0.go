package quantized

// Q8_0 is f16 d, 32 signed bytes q. The value is d·q.
var Q8_0 = Block{
	Name: "Q8_0", Elements: 32, Bytes: 34, group: 32, halves: []int{0},
	unpack: func(b, q []byte, mul, _ []float32) {
		mul[0] = half(b)
		copy(q[:32], b[2:])
	},

	// The scale is the largest magnitude / 127; ties are rounded away from 0.
	encode: func(dst []byte, x, _ []float32, _ *encoder) {
		for i := range len(x) / 32 {
			block := x[32*i:][:32]
			b := dst[34*i:][:34]
			_, magnitude := extreme(block)
			d := magnitude / 127
			putHalf(b, d)
			inverse := reciprocal(d)
			for j, v := range block {
				b[2+j] = byte(away(float32(v * inverse)))
			}
		}
	},
}

// away rounds to the nearest integer, with ties away from 0. Adding ½ could round a number just below a tie up to the
// integer above.
func away(v float32) int32 {
	n := trunc(v)
	switch rest := v - float32(n); {
	case rest >= .5:
		return n + 1
	case rest <= -.5:
		return n - 1
	}
	return n
}
