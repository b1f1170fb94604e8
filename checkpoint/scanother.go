package checkpoint

import (
	"encoding/binary"

	"github.com/modelcompress/compress/safetensors"
)

// look counts the zeros among the elements in p and finds the first that is NaN or infinite, -1 if none is.
type look func(p []byte) (zeros int64, bad int)

// lookAt gives the look for a type that no device computes with; nil for the 6-bit floats: the format does not say in
// which order four of them fill three bytes. They have neither NaN nor infinities.
func lookAt(d safetensors.DType) look {
	switch d {
	case safetensors.BOOL, safetensors.U8, safetensors.I8:
		return byByte(func(b byte) int { return count(b == 0) }, nil)
	case safetensors.F4: // two to a byte, each with the sign in its top bit
		return byByte(func(b byte) int { return count(b&0x07 == 0) + count(b&0x70 == 0) }, nil)
	case safetensors.F8_E5M2:
		return byByte(signedZero, func(b byte) bool { return b&0x7c == 0x7c })
	case safetensors.F8_E4M3:
		return byByte(signedZero, func(b byte) bool { return b&0x7f == 0x7f })
	case safetensors.F8_E8M0: // powers of two, no zero
		return byByte(func(byte) int { return 0 }, func(b byte) bool { return b == 0xff })
	case safetensors.F8_E4M3FNUZ, safetensors.F8_E5M2FNUZ: // what would be the negative zero is NaN
		return byByte(func(b byte) int { return count(b == 0) }, func(b byte) bool { return b == 0x80 })
	case safetensors.I16, safetensors.U16:
		return words(2, func(p []byte) bool { return binary.LittleEndian.Uint16(p) == 0 }, nil)
	case safetensors.I32, safetensors.U32:
		return words(4, func(p []byte) bool { return binary.LittleEndian.Uint32(p) == 0 }, nil)
	case safetensors.I64, safetensors.U64:
		return words(8, func(p []byte) bool { return binary.LittleEndian.Uint64(p) == 0 }, nil)
	case safetensors.C64:
		return words(8, func(p []byte) bool { return binary.LittleEndian.Uint64(p)&^0x80000000_80000000 == 0 },
			func(p []byte) bool {
				const exponent = 0x7f800000
				return binary.LittleEndian.Uint32(p)&exponent == exponent ||
					binary.LittleEndian.Uint32(p[4:])&exponent == exponent
			})
	}

	return nil
}

func signedZero(b byte) int { return count(b&0x7f == 0) }

// byByte makes a look from what every byte means: how many zeros, and whether it is no finite number; bad may be nil.
func byByte(zeros func(b byte) int, bad func(b byte) bool) look {
	var zero [256]int64
	var broken [256]bool
	for i := range zero {
		zero[i] = int64(zeros(byte(i)))
		broken[i] = bad != nil && bad(byte(i))
	}

	return func(p []byte) (n int64, first int) {
		first = -1
		for i, b := range p {
			n += zero[b]
			if broken[b] && first < 0 {
				first = i
			}
		}
		return n, first
	}
}

// words makes a look for elements of size bytes; bad may be nil.
func words(size int, zero, bad func(p []byte) bool) look {
	return func(p []byte) (n int64, first int) {
		first = -1
		for i := 0; len(p) >= size; i, p = i+1, p[size:] {
			if zero(p) {
				n++
			}
			if first < 0 && bad != nil && bad(p) {
				first = i
			}
		}

		return n, first
	}
}
