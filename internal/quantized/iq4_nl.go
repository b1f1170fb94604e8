package quantized

// iq4Values are the values that the codes of [IQ4_NL] and [IQ4_XS] stand for.
var iq4Values = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// IQ4_NL is f16 d, 16 bytes of codes as in [Q4_0]. The value is d·table[code].
var IQ4_NL = Block{
	Name: "IQ4_NL", Elements: 32, Bytes: 18, group: 32, halves: []int{0}, translate: &iq4Values,
	unpack: func(b, q []byte, mul, _ []float32) {
		mul[0] = half(b)
		nibbles(q, b[2:])
	},
}
