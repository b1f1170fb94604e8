package quantized

import (
	"encoding/binary"
	"math"
)

// F32 is IEEE 754 binary32 as it is.
var F32 = Block{
	Name: "F32", Elements: 1, Bytes: 4,
	widen: func(dst []float32, src []byte) {
		for len(dst) >= 8 { // the bounds of eight are checked at once
			out := (*[8]float32)(dst)
			in := (*[32]byte)(src)
			for i := range out {
				out[i] = math.Float32frombits(binary.LittleEndian.Uint32(in[4*i:]))
			}
			dst = dst[8:]
			src = src[32:]
		}
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	},
	encode: func(dst []byte, x, _ []float32, _ *encoder) {
		for i, v := range x {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	},
}

// F16 is IEEE 754 binary16.
var F16 = Block{
	Name: "F16", Elements: 1, Bytes: 2,
	widen: func(dst []float32, src []byte) { widen(dst, src, fastest.widenF16, widenF16Portable) },

	limit: 65520, // half way from the largest float16 to the next power of two
	encode: func(dst []byte, x, _ []float32, _ *encoder) {
		narrow(dst, x, fastest.narrowF16, narrowF16Portable)
	},
}

// BF16 is the upper half of a binary32.
var BF16 = Block{
	Name: "BF16", Elements: 1, Bytes: 2,
	widen: func(dst []float32, src []byte) { widen(dst, src, fastest.widenBF16, widenBF16Portable) },

	limit: math.Float32frombits(0x7f7f8000),
	encode: func(dst []byte, x, _ []float32, _ *encoder) {
		narrow(dst, x, fastest.narrowBF16, narrowBF16Portable)
	},
}
