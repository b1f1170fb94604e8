package quantized

// Q5_0 is f16 d, 32 bits that are bit 4 of each q, 16 bytes of the lower bits as in [Q4_0]. The value is d·(q - 16).
var Q5_0 = Block{
	Name: "Q5_0", Elements: 32, Bytes: 22, group: 32, halves: []int{0},
	unpack: func(b, q []byte, mul, _ []float32) {
		mul[0] = half(b)
		nibbles(q, b[6:])
		for i := range 4 {
			store(q[8*i:], minus(load(q[8*i:])|spread(b[2+i])<<4, 16))
		}
	},
}
