package dtype

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// ErrDType: elements of that type are not computed with.
var ErrDType = errors.New("element type is none of F32, BF16, F16, F64")

// Size is the number of bytes of an element of a known type.
func Size(t safetensors.DType) int { return t.Bits() / 8 }

// Decode writes the elements in data, of type t, to dst: F32, BF16 and F16 exactly, F64 rounded to nearest.
// data has as many elements as dst. The error wraps [ErrDType].
func Decode(dst []float32, data []byte, t safetensors.DType) error {
	if !IsFloat(t) {
		return fmt.Errorf("%w: %s", ErrDType, t)
	}
	if len(data) != len(dst)*Size(t) {
		panic("dtype: data and elements differ in number")
	}

	switch t {
	case safetensors.F32:
		copy(bytesOf(dst), data)
	case safetensors.BF16:
		decodeBF16(dst, data)
	case safetensors.F16:
		for i := range dst {
			dst[i] = kernels.FromF16(binary.LittleEndian.Uint16(data[2*i:]))
		}
	case safetensors.F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:])))
		}
	}

	return nil
}

// Encode writes src to dst as elements of type t, rounded to nearest with ties to even; what exceeds F16
// becomes an infinity. The error wraps [ErrDType].
func Encode(dst []byte, src []float32, t safetensors.DType) error {
	if !IsFloat(t) {
		return fmt.Errorf("%w: %s", ErrDType, t)
	}
	if len(dst) != len(src)*Size(t) {
		panic("dtype: data and elements differ in number")
	}

	switch t {
	case safetensors.F32:
		copy(dst, bytesOf(src))
	case safetensors.BF16:
		encodeBF16(dst, src)
	case safetensors.F16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], kernels.ToF16(v))
		}
	case safetensors.F64:
		for i, v := range src {
			binary.LittleEndian.PutUint64(dst[8*i:], math.Float64bits(float64(v)))
		}
	}

	return nil
}

// bytesOf are the bytes of x as they lie in memory, lowest first, as in a file: every processor that this module is
// built for has them so.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// decodeBF16 takes four elements at a time, which one load of eight bytes has: half the time of one by one.
func decodeBF16(dst []float32, data []byte) {
	for len(dst) >= 4 && len(data) >= 8 {
		four := binary.LittleEndian.Uint64(data)
		dst[0] = math.Float32frombits(uint32(four) << 16)
		dst[1] = math.Float32frombits(uint32(four) &^ 0xffff)
		dst[2] = math.Float32frombits(uint32(four>>32) << 16)
		dst[3] = math.Float32frombits(uint32(four>>32) &^ 0xffff)
		dst, data = dst[4:], data[8:]
	}
	for i := range dst {
		dst[i] = kernels.FromBF16(binary.LittleEndian.Uint16(data[2*i:]))
	}
}

// encodeBF16 stores four elements at once.
func encodeBF16(dst []byte, src []float32) {
	for len(src) >= 4 && len(dst) >= 8 {
		low := uint32(kernels.ToBF16(src[0])) | uint32(kernels.ToBF16(src[1]))<<16
		high := uint32(kernels.ToBF16(src[2])) | uint32(kernels.ToBF16(src[3]))<<16
		binary.LittleEndian.PutUint64(dst, uint64(low)|uint64(high)<<32)
		src, dst = src[4:], dst[8:]
	}
	for i, v := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], kernels.ToBF16(v))
	}
}

// NonFinite returns the first element that is a NaN or an infinity, -1 if there is none.
func NonFinite(x []float32) int {
	for i, v := range x {
		if v-v != 0 {
			return i
		}
	}
	return -1
}
