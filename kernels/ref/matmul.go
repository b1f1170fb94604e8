package ref

import "github.com/modelcompress/compress/kernels"

// matMulNT computes
//
//	for i, j { dst[i,j] = Σ_p x[i,p]·w[j,p] (+ bias[j]) (+ dst[i,j]) }
func matMulNT(dst, x, w kernels.Mat, o kernels.MatMul) {
	need(x.Rows == dst.Rows && w.Rows == dst.Cols && x.Cols == w.Cols, "ref: MatMulNT: shapes do not agree")
	sum := make([]float64, dst.Rows*dst.Cols)
	for j := range w.Rows {
		wj := row(w, j)
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

// matMulNN computes
//
//	for i, j { dst[i,j] = Σ_p x[i,p]·w[p,j] (+ bias[j]) (+ dst[i,j]) }
func matMulNN(dst, x, w kernels.Mat, o kernels.MatMul) {
	need(x.Rows == dst.Rows && w.Cols == dst.Cols && x.Cols == w.Rows, "ref: MatMulNN: shapes do not agree")
	sum := make([]float64, dst.Rows*dst.Cols)
	for p := range w.Rows {
		wp := row(w, p)
		for i := range x.Rows {
			axpy(sum[i*dst.Cols:(i+1)*dst.Cols], x.RowF32(i)[p], wp)
		}
	}
	store(dst, sum, o)
}

// matMulTN computes
//
//	for i, j { dst[i,j] = Σ_p a[p,i]·b[p,j] (+ dst[i,j]) }
func matMulTN(dst, a, b kernels.Mat, o kernels.MatMul) {
	need(a.Cols == dst.Rows && b.Cols == dst.Cols && a.Rows == b.Rows, "ref: MatMulTN: shapes do not agree")
	sum := make([]float64, dst.Rows*dst.Cols)
	for p := range a.Rows {
		bp := b.RowF32(p)
		for i, v := range a.RowF32(p) {
			axpy(sum[i*dst.Cols:(i+1)*dst.Cols], v, bp)
		}
	}
	store(dst, sum, o)
}

// axpy computes y[j] += a·x[j].
func axpy(y []float64, a float32, x []float32) {
	for j, v := range x {
		y[j] += float64(a) * float64(v)
	}
}

// store rounds the sums into dst, with the bias and the old contents added as the options say.
func store(dst kernels.Mat, sum []float64, o kernels.MatMul) {
	var bias []float32
	if !o.Bias.IsZero() {
		need(o.Bias.Rows == 1 && o.Bias.Cols == dst.Cols, "ref: MatMul: bias is not one row of dst's width")
		bias = row(o.Bias, 0)
	}

	for i := range dst.Rows {
		d := dst.RowF32(i)
		for j := range d {
			s := sum[i*dst.Cols+j]
			if bias != nil {
				s += float64(bias[j])
			}
			if o.Accumulate {
				s += float64(d[j])
			}

			d[j] = float32(s)
		}
	}

	dst.Buf.Changed()
}
