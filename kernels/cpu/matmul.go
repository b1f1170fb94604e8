package cpu

import "github.com/modelcompress/compress/kernels"

// matmulOps fills in the matrix products.
func (d *Device) matmulOps(o *kernels.Ops) {
	o.MatMulNT = d.matMulNT
	o.MatMulNN = d.matMulNN
	o.MatMulTN = d.matMulTN
}

// matMulNT computes dst[i,j] = Σ_p x[i,p]·w[j,p] (+ bias[j], + dst[i,j]).
func (d *Device) matMulNT(dst, x, w kernels.Mat, o kernels.MatMul) {
	checkMatMul(dst, o, x.Rows, w.Rows, x.Cols, w.Cols)
	d.parallel(w.Rows, func(j int) {
		wr := make([]float32, w.Cols)
		widenRow(wr, w, j)
		for i := range x.Rows {
			var s float32
			for p, v := range x.RowF32(i) {
				s += v * wr[p]
			}
			putSum(dst, i, j, s, o)
		}
	})
}

// matMulNN computes dst[i,j] = Σ_p x[i,p]·w[p,j] (+ bias[j], + dst[i,j]).
func (d *Device) matMulNN(dst, x, w kernels.Mat, o kernels.MatMul) {
	checkMatMul(dst, o, x.Rows, w.Cols, x.Cols, w.Rows)
	d.parallel(x.Rows, func(i int) {
		sum, wr := make([]float32, w.Cols), make([]float32, w.Cols)
		for p, v := range x.RowF32(i) {
			widenRow(wr, w, p)
			for j := range sum {
				sum[j] += v * wr[j]
			}
		}
		for j, s := range sum {
			putSum(dst, i, j, s, o)
		}
	})
}

// matMulTN computes dst[i,j] = Σ_p a[p,i]·b[p,j] (+ dst[i,j]).
func (d *Device) matMulTN(dst, a, b kernels.Mat, o kernels.MatMul) {
	checkMatMul(dst, o, a.Cols, b.Cols, a.Rows, b.Rows)
	d.parallel(a.Cols, func(i int) {
		sum := make([]float32, b.Cols)
		for p := range a.Rows {
			v := a.RowF32(p)[i]
			for j, y := range b.RowF32(p) {
				sum[j] += v * y
			}
		}
		for j, s := range sum {
			putSum(dst, i, j, s, o)
		}
	})
}

func putSum(dst kernels.Mat, i, j int, s float32, o kernels.MatMul) {
	if !o.Bias.IsZero() {
		s += weightAt(o.Bias, 0, j)
	}
	if o.Accumulate {
		s += dst.RowF32(i)[j]
	}
	dst.RowF32(i)[j] = s
}

func widenRow(dst []float32, w kernels.Mat, i int) {
	for j := range dst {
		dst[j] = weightAt(w, i, j)
	}
}

func weightAt(w kernels.Mat, i, j int) float32 {
	switch w.DType() {
	case kernels.F32:
		return w.RowF32(i)[j]
	case kernels.BF16:
		return kernels.FromBF16(w.RowU16(i)[j])
	case kernels.F16:
		return kernels.FromF16(w.RowU16(i)[j])
	}
	panic("cpu: weight is not F32, BF16 or F16")
}

func checkMatMul(dst kernels.Mat, o kernels.MatMul, m, n, kx, kw int) {
	if kx != kw {
		panic("cpu: matrix product of different inner sizes")
	}
	if dst.Rows != m || dst.Cols != n {
		panic("cpu: destination of a matrix product has the wrong shape")
	}
	if !o.Bias.IsZero() && (o.Bias.Rows != 1 || o.Bias.Cols != n) {
		panic("cpu: bias of a matrix product has the wrong shape")
	}
}
