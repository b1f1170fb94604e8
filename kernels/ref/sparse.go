package ref

import "github.com/modelcompress/compress/kernels"

// expand computes
//
//	for i { p := offsets[i]; for j { if mask[i,j] { dst[i,j] = values[p]; p++ } else { dst[i,j] = 0 } } }
func expand(dst kernels.Mat, w kernels.Sparse) {
	need(w.Consistent(), "ref: Expand: parts of the sparse weight do not fit together")
	need(dst.Rows == w.Rows() && dst.Cols == w.Cols && dst.DType() == w.DType(),
		"ref: Expand: destination has another shape or type")

	size := dst.DType().Size()
	out, values := dst.Buf.Bytes(), w.Values.Buf.Bytes()
	for i := range dst.Rows {
		p := w.Values.Off + int(w.Offsets.Buf.I64()[w.Offsets.Off+i])
		mask := w.Mask.RowU8(i)
		for j := range dst.Cols {
			d := out[(dst.Off+i*dst.Stride+j)*size:][:size]
			if mask[j/8]>>(j%8)&1 == 0 {
				clear(d)
				continue
			}

			copy(d, values[p*size:][:size])
			p++
		}
	}

	dst.Buf.Changed()
}

// matMulSparse computes, with w[j,p] = 0 where it is not stored,
//
//	for i, j { dst[i,j] = Σ_p x[i,p]·w[j,p] (+ bias[j]) (+ dst[i,j]) }
func matMulSparse(dst, x kernels.Mat, w kernels.Sparse, o kernels.MatMul) {
	need(w.Consistent(), "ref: MatMulSparse: parts of the sparse weight do not fit together")
	dense := kernels.MatOf(kernels.NewHost(w.DType(), w.Rows()*w.Cols), w.Rows(), w.Cols)
	expand(dense, w)
	matMulNT(dst, x, dense, o)
}
