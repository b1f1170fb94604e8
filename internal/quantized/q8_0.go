package quantized

// Q8_0 is f16 d, 32 signed bytes q. The value is d·q.
var Q8_0 = Block{
	Name: "Q8_0", Elements: 32, Bytes: 34, group: 32, halves: []int{0},
	unpack: func(b, q []byte, mul, _ []float32) {
		mul[0] = half(b)
		copy(q[:32], b[2:])
	},
}
