package dtype

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

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
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
	case safetensors.BF16:
		for i := range dst {
			dst[i] = kernels.FromBF16(binary.LittleEndian.Uint16(data[2*i:]))
		}
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
		for i, v := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	case safetensors.BF16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], kernels.ToBF16(v))
		}
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

// NonFinite returns the first element that is a NaN or an infinity, -1 if there is none.
func NonFinite(x []float32) int {
	for i, v := range x {
		if v-v != 0 {
			return i
		}
	}
	return -1
}
