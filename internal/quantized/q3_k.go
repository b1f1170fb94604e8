package quantized

// Q3_K is 32 bytes of high bits, 64 bytes of the two lower bits as in [Q2_K], 12 bytes of scales, f16 d. Bit j of high
// byte l is that of element 32·j + l, and 1 means that nothing is taken off. A scale has six bits, for 16 elements:
// the lower four of scales 0 to 7 and 8 to 15 are the nibbles of the first eight bytes, the upper two of scales i,
// i+4, i+8 and i+12 are in byte 8+i. The value is d·(scale - 32)·(q - 4·(1 - high)).
var Q3_K = Block{
	Name: "Q3_K", Elements: 256, Bytes: 110, group: 16, halves: []int{108},
	unpack: func(b, q []byte, mul, _ []float32) {
		q3Scales(b, mul)
		pairs(q, b[32:96])
		for i := 0; i < 32; i += 8 {
			high := load(b[i:])
			for j := range 8 {
				at := q[32*j+i:]
				store(at, minus(load(at)|high>>j&ones<<2, 4))
			}
		}
	},

	weighted: true, encode: encodeQ3,
}

func q3Scales(b []byte, mul []float32) {
	d := half(b[108:])
	scales := b[96:108]
	for i := range 16 {
		low := scales[i%8] >> (4 * (i / 8)) & 15
		high := scales[8+i%4] >> (2 * (i / 4)) & 3
		mul[i] = d * float32(int(low|high<<4)-32)
	}
}

// encodeQ3 improves integers one by one where there is no importance, and searches as [Q6_K] does where there is.
func encodeQ3(dst []byte, x, importance []float32, w *encoder) {
	groups := len(x) / 16
	if importance != nil {
		weighSuperblocks(x, importance, 2, w)
		q3Weighted.run(w, x, 16, given)
	} else {
		runDescents(w, x)
	}

	for i := range len(x) / superblock {
		b := dst[110*i:][:110]
		scales := w.scale[16*i:][:16]
		levels := w.levels[:16]
		var d float32
		if importance != nil {
			var f fit
			d, f = q6Search.group(scales, w.sum[16*i:][:16])
			q6Search.round(levels, scales, f)
		} else {
			d = signedScales(levels, scales)
		}

		putHalf(b[108:], d)
		putQ3Scales(b[96:108], levels)
		q3Scales(b, w.mul[16*i:])
	}

	clear(w.sub[:groups])
	fastest.round(w.q[:len(x)], x, w.mul[:groups], w.sub[:groups], 16, 4, 7)
	for g := range groups {
		switch {
		case w.mul[g] != 0:
		case importance != nil:
			q3Weighted.round(w.q[16*g:][:16], x[16*g:][:16], w.fits[g])
		default:
			descent(4, x[16*g:][:16], w.q[16*g:][:16])
		}
	}
	for i := range len(x) / superblock {
		b := dst[110*i:][:110]
		q := w.q[superblock*i:][:superblock]
		putPairs(b[32:96], q)
		for i := 0; i < 32; i += 8 {
			var high uint64
			for j := range 8 {
				high |= load(q[32*j+i:]) >> 2 & ones << j
			}
			store(b[i:], high)
		}
	}
}

// runDescents searches for groups of 16 elements, for w.scale.
func runDescents(w *encoder, x []float32) {
	if fastest.lanes == 0 {
		for g := range len(x) / 16 {
			w.scale[g] = descent(4, x[16*g:][:16], w.q[16*g:][:16])
		}
		return
	}

	for first := 0; first*16 < len(x); first += fastest.lanes {
		groups := w.fill(x[first*16:], 16, square)
		fastest.descentLanes(&w.batch, 16, 4, descentRounds)
		copy(w.scale[first:], w.batch.scale[:groups])
	}
}

// signedScales rounds scales to integers from 0 to 63, of which 32 is subtracted: the one of the largest magnitude
// becomes 0. It returns what a step is worth. If all scales are 0, so are the integers.
func signedScales(levels []byte, scales []float32) float32 {
	extremum := extremeScale(scales)
	if extremum == 0 {
		clear(levels)
		return 0
	}

	inverse := -32 / extremum
	for i, s := range scales {
		l := int32(int8(nearest(inverse * s)))
		levels[i] = byte(max(-32, min(31, l)) + 32)
	}
	return 1 / inverse
}

// putQ3Scales writes 16 numbers of six bits as [q3Scales] reads them.
func putQ3Scales(b, levels []byte) {
	for i := range 4 {
		b[i] = levels[i]&15 | levels[8+i]<<4
		b[4+i] = levels[4+i]&15 | levels[12+i]<<4
		b[8+i] = levels[i]>>4 | levels[4+i]>>4<<2 | levels[8+i]>>4<<4 | levels[12+i]>>4<<6
	}
}
