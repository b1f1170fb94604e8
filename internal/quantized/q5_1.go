package quantized

// Q5_1 is f16 d, f16 m, 32 bits that are bit 4 of each q, 16 bytes of the lower bits as in [Q4_0]. The value is
// d·q + m.
var Q5_1 = Block{
	Name: "Q5_1", Elements: 32, Bytes: 24, group: 32, offset: true, halves: []int{0, 2},
	unpack: func(b, q []byte, mul, sub []float32) {
		mul[0] = half(b)
		sub[0] = -half(b[2:])
		nibbles(q, b[8:])
		for i := range 4 {
			store(q[8*i:], load(q[8*i:])|spread(b[4+i])<<4)
		}
	},
}
