package ref

import (
	"encoding/binary"

	"github.com/modelcompress/compress/kernels"
)

// half is the F16 number at the start of b.
func half(b []byte) float32 { return kernels.FromF16(binary.LittleEndian.Uint16(b)) }

// decoders write the elements of one block of each of GGUF's formats to dst. A product and a difference are rounded one
// after the other, on every processor: hence the conversions of products.
var decoders = map[kernels.QuantFormat]func(dst []float32, b []byte){
	kernels.Q8_0: func(dst []float32, b []byte) {
		for j := range dst {
			dst[j] = half(b) * float32(int8(b[2+j]))
		}
	},
	kernels.Q4_0: func(dst []float32, b []byte) {
		for j := range dst {
			dst[j] = half(b) * float32(nibble(b[2:], j)-8)
		}
	},
	kernels.Q4_1: func(dst []float32, b []byte) {
		for j := range dst {
			dst[j] = float32(half(b)*float32(nibble(b[4:], j))) + half(b[2:])
		}
	},
	kernels.Q5_0: func(dst []float32, b []byte) {
		for j := range dst {
			dst[j] = half(b) * float32(nibble(b[6:], j)+bit(b[2:], j)<<4-16)
		}
	},
	kernels.Q5_1: func(dst []float32, b []byte) {
		for j := range dst {
			dst[j] = float32(half(b)*float32(nibble(b[8:], j)+bit(b[4:], j)<<4)) + half(b[2:])
		}
	},
	kernels.Q4_K: func(dst []float32, b []byte) {
		for j := range dst {
			q := int(b[16+j/64*32+j%32]>>(j/32%2*4)) & 15
			dst[j] = affine(b, j/32, q)
		}
	},
	kernels.Q5_K: func(dst []float32, b []byte) {
		for j := range dst {
			q := int(b[48+j/64*32+j%32]>>(j/32%2*4))&15 | int(b[16+j%32]>>(j/32)&1)<<4
			dst[j] = affine(b, j/32, q)
		}
	},
	kernels.Q6_K: func(dst []float32, b []byte) {
		for j := range dst {
			at, part := j%128, j/128
			q := int(b[64*part+at%64]>>(at/64*4))&15 | int(b[128+32*part+at%32]>>(at/32*2)&3)<<4
			dst[j] = float32(half(b[208:])*float32(int8(b[192+j/16]))) * float32(q-32)
		}
	},
}

// nibble is element j of 32: the low nibbles of 16 bytes are the first half, the high ones the second.
func nibble(b []byte, j int) int { return int(b[j%16]>>(j/16*4)) & 15 }

// bit is bit j of b, the lowest first.
func bit(b []byte, j int) int { return int(b[j/8]>>(j%8)) & 1 }

// affine is an element of group g of a block of Q4_K or Q5_K, which begins with d, m and eight pairs of six bits. The
// pairs 0 to 3 are the lower six bits of bytes 0 to 3 and 4 to 7 behind the numbers; pairs 4 to 7 have their lower four
// bits in bytes 8 to 11 and their upper two in what the others leave.
func affine(b []byte, g, q int) float32 {
	s := b[4:16]
	scale, low := s[g%4]&63, s[4+g%4]&63
	if g >= 4 {
		scale, low = s[4+g]&15|s[g-4]>>6<<4, s[4+g]>>4|s[g]>>6<<4
	}
	return float32(float32(half(b)*float32(scale))*float32(q)) - float32(half(b[2:])*float32(low))
}

// decodeRow writes the values of row i of w to dst.
func decodeRow(dst []float32, w kernels.Quantised, i int) {
	data := w.Data.RowU8(i)
	if !w.Format.Grouped() {
		decode := decoders[w.Format]
		elements, bytes := w.Format.Block()
		for at := 0; at < len(dst); at += elements {
			decode(dst[at:at+elements], data[at/elements*bytes:][:bytes])
		}
		return
	}

	scales := w.Scales.RowF32(i)
	for j := range dst {
		var q float32
		if w.Format == kernels.Int4 {
			q = float32(data[j/2] >> (j % 2 * 4) & 15)
		} else {
			q = float32(int8(data[j]))
		}
		dst[j] = scales[j/w.Group] * (q - zeroOf(w, i, j/w.Group))
	}
}

// zeroOf is what is subtracted from the codes of group g of row i.
func zeroOf(w kernels.Quantised, i, g int) float32 {
	switch {
	case w.Zeros.IsZero() && w.Format == kernels.Int4:
		return 8
	case w.Zeros.IsZero():
		return 0
	case w.Zeros.DType() == kernels.F32:
		return w.Zeros.RowF32(i)[g]
	case w.Format == kernels.Int8:
		return float32(int8(w.Zeros.RowU8(i)[g]))
	}
	return float32(w.Zeros.RowU8(i)[g])
}

// expandQuantised computes
//
//	for i, j { dst[i,j] = w[i,j] }
func expandQuantised(dst kernels.Mat, w kernels.Quantised) {
	need(w.Consistent(), "ref: ExpandQuantised: parts of the quantised weight do not fit together")
	need(dst.Rows == w.Rows() && dst.Cols == w.Cols, "ref: ExpandQuantised: destination has another shape")
	t := dst.DType()
	need(t == kernels.F32 || t == kernels.BF16 || t == kernels.F16, "ref: ExpandQuantised: destination is no weight")

	wide := make([]float32, w.Cols)
	for i := range dst.Rows {
		decodeRow(wide, w, i)
		if t == kernels.F32 {
			copy(dst.RowF32(i), wide)
			continue
		}

		narrow := kernels.ToBF16
		if t == kernels.F16 {
			narrow = kernels.ToF16
		}
		for j, v := range wide {
			dst.RowU16(i)[j] = narrow(v)
		}
	}

	dst.Buf.Changed()
}

// gatherQuantised computes
//
//	for i, j { dst[i,j] = w[ids[i],j] · scale }
func gatherQuantised(dst kernels.Mat, w kernels.Quantised, ids []int32, scale float32) {
	need(w.Consistent(), "ref: GatherQuantised: parts of the quantised weight do not fit together")
	need(dst.Rows == len(ids) && dst.Cols == w.Cols, "ref: GatherQuantised: shapes do not agree")
	for i, id := range ids {
		need(id >= 0 && int(id) < w.Rows(), "ref: GatherQuantised: row id outside the weight")
		d := dst.RowF32(i)
		decodeRow(d, w, int(id))
		for j, v := range d {
			d[j] = v * scale
		}
	}
	dst.Buf.Changed()
}

// matMulQuantised computes
//
//	for i, j { dst[i,j] = Σ_p x[i,p]·w[j,p] (+ bias[j]) (+ dst[i,j]) }
func matMulQuantised(dst, x kernels.Mat, w kernels.Quantised, o kernels.MatMul) {
	need(w.Consistent(), "ref: MatMulQuantised: parts of the quantised weight do not fit together")
	need(x.Rows == dst.Rows && w.Rows() == dst.Cols && x.Cols == w.Cols,
		"ref: MatMulQuantised: shapes do not agree")

	sum := make([]float64, dst.Rows*dst.Cols)
	wj := make([]float32, w.Cols)
	for j := range dst.Cols {
		decodeRow(wj, w, j)
		for i := range x.Rows {
			s := 0.0
			for p, v := range x.RowF32(i) {
				s += float64(v) * float64(wj[p])
			}
			sum[i*dst.Cols+j] = s
		}
	}

	store(dst, sum, o)
}
