package quantized

import "encoding/binary"

// IQ4_XS is f16 d, 16 bits with the upper two bits of eight scales, 4 bytes with their lower four, and 128 bytes of
// codes, 16 for each 32 elements as in [IQ4_NL]. The value is d·(scale - 32)·table[code].
var IQ4_XS = Block{
	Name: "IQ4_XS", Elements: 256, Bytes: 136, group: 32, halves: []int{0}, translate: &iq4Values,
	unpack: func(b, q []byte, mul, _ []float32) {
		d := half(b)
		high := binary.LittleEndian.Uint16(b[2:])
		for i := range 8 {
			low := b[4+i/2] >> (4 * (i % 2)) & 15
			mul[i] = d * float32(int(low|byte(high>>(2*i)&3)<<4)-32)
			nibbles(q[32*i:], b[8+16*i:])
		}
	},

	weighted: true,
	encode: func(dst []byte, x, importance []float32, w *encoder) {
		searchTable(x, importance, superblock, w)
		for i := range len(x) / superblock {
			putIQ4Scales(dst[136*i:], w.scale[8*i:][:8], w.sub[8*i:])
		}

		fastest.codes(w.q[:len(x)], x, w.sub[:len(x)/32], iq4Book)
		for i := range len(x) / 32 {
			putNibbles(dst[i/8*136+8+i%8*16:], w.q[32*i:])
		}
	},
}

// putIQ4Scales writes the header of a block, and finds by what its elements are multiplied. That is done with the scale
// before it is rounded to float16.
func putIQ4Scales(b []byte, scales, inverse []float32) {
	d := -extremeScale(scales) / 32
	putHalf(b, d)

	var high uint16
	clear(b[4:8])
	inverseD := reciprocal(d)
	for i, s := range scales {
		l := max(-32, min(31, nearest(inverseD*s)))
		inverse[i] = reciprocal(d * float32(l))
		bits := byte(l + 32)
		b[4+i/2] |= bits & 15 << (4 * (i % 2))
		high |= uint16(bits>>4) << (2 * i)
	}
	binary.LittleEndian.PutUint16(b[2:], high)
}
