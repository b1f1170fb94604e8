package cpu

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// convert computes dst[i,j] = x[i,j], rounded once to dst's element type.
func (l *layers) convert(dst, x kernels.Mat) {
	must(sameShape(dst, x), "cpu: Convert: shapes do not agree")
	must(dst.DType().IsFloat() && x.DType().IsFloat(), "cpu: Convert: element type is not a floating-point type")
	l.pieces(x.Rows, x.Cols, dst.Dense() && x.Dense(), func(i, lo, hi int) {
		l.convertSpan(dst, x, i, lo, hi)
	})
	dst.Buf.Changed()
}

// convertSpan converts columns [lo, hi) of row i: by a copy, between float64 and float32 element by element, or
// in a vector loop that widens to float32, narrows from it, or both through a small block.
func (l *layers) convertSpan(dst, x kernels.Mat, i, lo, hi int) {
	to, from := dst.DType(), x.DType()
	d, s := dst.Off+i*dst.Stride+lo, x.Off+i*x.Stride+lo
	switch {
	case to == from:
		size := to.Size()
		copy(dst.Buf.Bytes()[d*size:(d+hi-lo)*size], x.Buf.Bytes()[s*size:])
	case from == kernels.F64:
		narrow64(dst.Buf, d, x.Buf.F64()[s:s+hi-lo])
	case from == kernels.F32 && to == kernels.F64:
		widen64(dst.Buf.F64()[d:d+hi-lo], span(x, i, lo, hi))
	case from == kernels.F32:
		l.narrow(span16(dst, i, lo, hi), span(x, i, lo, hi), to)
	case to == kernels.F32:
		l.widenSpan(span(dst, i, lo, hi), span16(x, i, lo, hi), from)
	default:
		l.convertBlocks(dst.Buf, d, x.Buf, s, hi-lo)
	}
}

// convertBlocks converts n 16-bit floats to another type through blocks of float32, which holds them exactly.
func (l *layers) convertBlocks(dst *kernels.Buffer, d int, x *kernels.Buffer, s, n int) {
	var block [256]float32
	for lo := 0; lo < n; lo += len(block) {
		b := block[:min(len(block), n-lo)]
		l.widenSpan(b, x.U16()[s+lo:s+lo+len(b)], x.DType)

		if dst.DType == kernels.F64 {
			widen64(dst.F64()[d+lo:d+lo+len(b)], b)
			continue
		}

		l.narrow(dst.U16()[d+lo:d+lo+len(b)], b, dst.DType)
	}
}

func (l *layers) narrow(dst []uint16, x []float32, to kernels.DType) {
	if to == kernels.F16 {
		l.v.narrowF16(dst, x)
		return
	}
	l.v.narrowBF16(dst, x)
}

func (l *layers) widenSpan(dst []float32, x []uint16, from kernels.DType) {
	if from == kernels.F16 {
		l.v.widenF16(dst, x)
		return
	}
	l.v.widenBF16(dst, x)
}

func widen64(dst []float64, x []float32) {
	for j, v := range x {
		dst[j] = float64(v)
	}
}

// narrow64 rounds float64 to any narrower type.
func narrow64(dst *kernels.Buffer, d int, x []float64) {
	switch dst.DType {
	case kernels.F32:
		out := dst.F32()[d : d+len(x)]
		for j, v := range x {
			out[j] = float32(v)
		}
	case kernels.BF16:
		out := dst.U16()[d : d+len(x)]
		for j, v := range x {
			out[j] = kernels.ToBF16(toOdd(v))
		}
	default:
		out := dst.U16()[d : d+len(x)]
		for j, v := range x {
			out[j] = kernels.ToF16(toOdd(v))
		}
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
