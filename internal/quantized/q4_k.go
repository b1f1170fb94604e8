package quantized

// Q4_K is f16 d, f16 dmin, 12 bytes of scales, 128 bytes of q. Of every 64 elements, 32 bytes have the first half in
// their low nibbles and the second in the high ones. There are a scale sc and a minimum m of six bits for 32 elements.
// The value is (d·sc)·q - dmin·m.
var Q4_K = Block{
	Name: "Q4_K", Elements: 256, Bytes: 144, group: 32, offset: true, halves: []int{0, 2},
	unpack: func(b, q []byte, mul, sub []float32) {
		scalesAndMinima(b, mul, sub)
		for part := range 4 {
			for i := 0; i < 32; i += 8 {
				x := load(b[16+32*part+i:])
				store(q[64*part+i:], x&low4)
				store(q[64*part+32+i:], x>>4&low4)
			}
		}
	},
}

// scalesAndMinima reads the first 16 bytes of a block of [Q4_K] and [Q5_K]: f16 d, f16 dmin, and eight pairs of six
// bits. The first four bytes have the scales 0 to 3 and the next four the minima in their lower six bits; those of the
// last four have the lower four bits of scale and minimum 4 to 7, whose upper two bits are those of the first eight.
func scalesAndMinima(b []byte, mul, sub []float32) {
	d := half(b)
	dmin := half(b[2:])
	s := b[4:16]
	for j := range 4 {
		mul[j] = d * float32(s[j]&63)
		sub[j] = dmin * float32(s[4+j]&63)
		mul[4+j] = d * float32(s[8+j]&15|s[j]>>6<<4)
		sub[4+j] = dmin * float32(s[8+j]>>4|s[4+j]>>6<<4)
	}
}
