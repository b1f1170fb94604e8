package quantized

// Q6_K is 128 bytes of the lower four bits, 64 bytes of the upper two, 16 signed bytes of scales for 16 elements each,
// f16 d. Of every 128 elements, the 64 lower bytes have the first half in their low nibbles and the second in the high
// ones, and the 32 upper bytes have 32 elements each in their bits 0-1, 2-3, 4-5 and 6-7. The value is
// (d·scale)·(q - 32).
var Q6_K = Block{
	Name: "Q6_K", Elements: 256, Bytes: 210, group: 16, halves: []int{208},
	unpack: func(b, q []byte, mul, _ []float32) {
		d := half(b[208:])
		for i, s := range b[192:208] {
			mul[i] = d * float32(int8(s))
		}

		for part := range 2 {
			low := b[64*part:]
			out := q[128*part:]
			for i := 0; i < 32; i += 8 {
				x := load(low[i:])
				y := load(low[32+i:])
				high := load(b[128+32*part+i:])
				store(out[i:], minus(x&low4|high&low2<<4, 32))
				store(out[32+i:], minus(y&low4|high>>2&low2<<4, 32))
				store(out[64+i:], minus(x>>4&low4|high>>4&low2<<4, 32))
				store(out[96+i:], minus(y>>4&low4|high>>6&low2<<4, 32))
			}
		}
	},
}
