package ref

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// convert computes
//
//	for i, j { dst[i,j] = x[i,j] }    // rounded once to dst's element type
func convert(dst, x kernels.Mat) {
	need(sameShape(dst, x), "ref: Convert: shapes do not agree")
	for i := range x.Rows {
		for j := range x.Cols {
			put(dst.Buf, dst.Off+i*dst.Stride+j, get(x.Buf, x.Off+i*x.Stride+j))
		}
	}
	dst.Buf.Changed()
}

// get reads an element of any floating-point type; exact.
func get(b *kernels.Buffer, i int) float64 {
	switch b.DType {
	case kernels.F32:
		return float64(b.F32()[i])
	case kernels.F64:
		return b.F64()[i]
	case kernels.BF16:
		return float64(kernels.FromBF16(b.U16()[i]))
	case kernels.F16:
		return float64(kernels.FromF16(b.U16()[i]))
	}

	panic("ref: element type is not a floating-point type")
}

// put rounds v into an element of any floating-point type, nearest with ties to even.
func put(b *kernels.Buffer, i int, v float64) {
	switch b.DType {
	case kernels.F32:
		b.F32()[i] = float32(v)
	case kernels.F64:
		b.F64()[i] = v
	case kernels.BF16:
		b.U16()[i] = kernels.ToBF16(toOdd(v))
	case kernels.F16:
		b.U16()[i] = kernels.ToF16(toOdd(v))
	default:
		panic("ref: element type is not a floating-point type")
	}
}

// toOdd rounds to float32 such that a later rounding to a type at least two bits narrower is that of v itself: an
// inexact result gets an odd last bit, so that it cannot fall on a tie (Boldo and Melquiond, "When double rounding is
// odd", 2005).
func toOdd(v float64) float32 {
	f := float32(v)
	if float64(f) == v || v != v {
		return f
	}
	if math.Abs(float64(f)) > math.Abs(v) { // towards zero first; from an infinity this gives the largest float32
		f = math.Float32frombits(math.Float32bits(f) - 1)
	}
	return math.Float32frombits(math.Float32bits(f) | 1)
}
