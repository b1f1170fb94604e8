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
}
