package quantized

// Q6_K is 128 bytes of the lower four bits, 64 bytes of the upper two, 16 signed bytes of scales for 16 elements each,
// f16 d. Of every 128 elements, the 64 lower bytes have the first half in their low nibbles and the second in the high
// ones, and the 32 upper bytes have 32 elements each in their bits 0-1, 2-3, 4-5 and 6-7. The value is
// (d·scale)·(q - 32).
var Q6_K = Block{
	Name: "Q6_K", Elements: 256, Bytes: 210, group: 16, halves: []int{208},
	unpack: func(b, q []byte, mul, _ []float32) {
		q6Scales(b, mul)
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

	weighted: true, encode: encodeQ6,
}

func q6Scales(b []byte, mul []float32) {
	d := half(b[208:])
	for i, s := range b[192:208] {
		mul[i] = d * float32(int8(s))
	}
}

// encodeQ6 weighs elements by their squares, or by the importance alone.
func encodeQ6(dst []byte, x, importance []float32, w *encoder) {
	by := square
	if importance != nil {
		copy(w.weights[:], importance)
		by = given
	}
	groups := len(x) / 16
	q6Search.run(w, x, 16, by)

	for i := range len(x) / superblock {
		b := dst[210*i:][:210]
		scales := w.scale[16*i:][:16]
		mul := w.mul[16*i:][:16]
		extremum, magnitude := extreme(scales)
		if magnitude < negligible {
			clear(b)
			clear(mul)
			clear(w.fits[16*i:][:16])
			continue
		}

		inverse := -128 / extremum
		putHalf(b[208:], 1/inverse)
		for j, s := range scales {
			b[192+j] = byte(min(127, nearest(inverse*s)))
		}
		q6Scales(b, mul)
	}

	clear(w.sub[:groups])
	fastest.round(w.q[:len(x)], x, w.mul[:groups], w.sub[:groups], 16, 32, 63)
	q6Search.roundRest(w, x, 16)
	for i := range len(x) / superblock {
		putQ6Codes(dst[210*i:][:210], w.q[superblock*i:][:superblock])
	}
}

func putQ6Codes(b, q []byte) {
	for part := range 2 {
		in := q[128*part:]
		for i := 0; i < 32; i += 8 {
			q0 := load(in[i:])
			q1 := load(in[32+i:])
			q2 := load(in[64+i:])
			q3 := load(in[96+i:])
			store(b[64*part+i:], q0&low4|q2&low4<<4)
			store(b[64*part+32+i:], q1&low4|q3&low4<<4)
			store(b[128+32*part+i:], q0>>4&low2|q1>>4&low2<<2|q2>>4&low2<<4|q3>>4&low2<<6)
		}
	}
}
