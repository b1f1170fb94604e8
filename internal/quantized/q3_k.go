package quantized

// Q3_K is 32 bytes of high bits, 64 bytes of the two lower bits as in [Q2_K], 12 bytes of scales, f16 d. Bit j of high
// byte l is that of element 32·j + l, and 1 means that nothing is taken off. A scale has six bits, for 16 elements:
// the lower four of scales 0 to 7 and 8 to 15 are the nibbles of the first eight bytes, the upper two of scales i,
// i+4, i+8 and i+12 are in byte 8+i. The value is d·(scale - 32)·(q - 4·(1 - high)).
var Q3_K = Block{
	Name: "Q3_K", Elements: 256, Bytes: 110, group: 16, halves: []int{108},
	unpack: func(b, q []byte, mul, _ []float32) {
		d := half(b[108:])
		scales := b[96:108]
		for i := range 16 {
			low := scales[i%8] >> (4 * (i / 8)) & 15
			high := scales[8+i%4] >> (2 * (i / 4)) & 3
			mul[i] = d * float32(int(low|high<<4)-32)
		}

		pairs(q, b[32:96])
		for i := 0; i < 32; i += 8 {
			high := load(b[i:])
			for j := range 8 {
				at := q[32*j+i:]
				store(at, minus(load(at)|high>>j&ones<<2, 4))
			}
		}
	},
}
