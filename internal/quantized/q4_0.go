package quantized

// Q4_0 is f16 d, 16 bytes of q: the low nibbles are the first 16 elements, the high ones the last 16. The value is
// d·(q - 8).
var Q4_0 = Block{
	Name: "Q4_0", Elements: 32, Bytes: 18, group: 32, halves: []int{0},
	unpack: func(b, q []byte, mul, _ []float32) {
		mul[0] = half(b)
		nibbles(q, b[2:])
		for i := 0; i < 32; i += 8 {
			store(q[i:], minus(load(q[i:]), 8))
		}
	},
}
