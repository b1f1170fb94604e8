package quantized

// Q5_K is [Q4_K] with 32 bytes of high bits before the bytes of q: bit j of byte l is bit 4 of element 32·j + l.
var Q5_K = Block{
	Name: "Q5_K", Elements: 256, Bytes: 176, group: 32, offset: true, halves: []int{0, 2},
	unpack: func(b, q []byte, mul, sub []float32) {
		scalesAndMinima(b, mul, sub)
		for i := 0; i < 32; i += 8 {
			high := load(b[16+i:])
			for part := range 4 {
				x := load(b[48+32*part+i:])
				store(q[64*part+i:], x&low4|high>>(2*part)&ones<<4)
				store(q[64*part+32+i:], x>>4&low4|high>>(2*part+1)&ones<<4)
			}
		}
	},
}
