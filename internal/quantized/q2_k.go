package quantized

// Q2_K is 16 bytes of scales, 64 bytes of q, f16 d, f16 dmin. A scale is sc in the low nibble and m in the high one,
// for 16 elements. Of every 128 elements, 32 bytes have 32 elements each in their bits 0-1, 2-3, 4-5 and 6-7. The
// value is (d·sc)·q - dmin·m.
var Q2_K = Block{
	Name: "Q2_K", Elements: 256, Bytes: 84, group: 16, offset: true, halves: []int{80, 82},
	unpack: func(b, q []byte, mul, sub []float32) {
		q2Scales(b, mul, sub)
		pairs(q, b[16:80])
	},

	weighted: true,
	encode: func(dst []byte, x, importance []float32, w *encoder) {
		offsetSuperblocks(&q2Super, dst, x, importance, w)
	},
}

var q2Super = superOffset{
	bytes: 84, group: 16, top: 15, factor: 1, plain: q2Search, weighted: q2Weighted, weights: magnitude,
	put: func(b []byte, d, dmin float32, w *encoder) {
		for i := range 16 {
			b[i] = w.levels[i] | w.lows[i]<<4
		}
		putHalf(b[80:], d)
		putHalf(b[82:], dmin)
	},
	scales: q2Scales,
	codes:  func(b, q []byte) { putPairs(b[16:80], q) },
}

func q2Scales(b []byte, mul, sub []float32) {
	d := half(b[80:])
	dmin := half(b[82:])
	for i, s := range b[:16] {
		mul[i] = d * float32(s&15)
		sub[i] = dmin * float32(s>>4)
	}
}

// pairs writes the 256 elements of two bits of [Q2_K] and [Q3_K].
func pairs(q, b []byte) {
	for half := range 2 {
		for i := 0; i < 32; i += 8 {
			x := load(b[32*half+i:])
			for part := range 4 {
				store(q[128*half+32*part+i:], x>>(2*part)&low2)
			}
		}
	}
}
