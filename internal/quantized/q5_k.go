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

	weighted: true,
	encode: func(dst []byte, x, importance []float32, w *encoder) {
		offsetSuperblocks(&q5Super, dst, x, importance, w)
	},
}

var q5Super = superOffset{
	bytes: 176, group: 32, top: 63, factor: 2, plain: q5Search, weighted: q5Weighted, weights: spread32,
	put: putScalesAndMinima, scales: scalesAndMinima,
	codes: func(b, q []byte) {
		putHalves(b[48:], q)
		for i := 0; i < 32; i += 8 {
			var high uint64
			for j := range 8 {
				high |= load(q[32*j+i:]) >> 4 & ones << j
			}
			store(b[16+i:], high)
		}
	},
}
