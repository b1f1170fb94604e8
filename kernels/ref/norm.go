package ref

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// gather computes
//
//	for i, j { dst[i,j] = src[ids[i],j] · scale }
func gather(dst, src kernels.Mat, ids []int32, scale float32) {
	need(dst.Rows == len(ids) && dst.Cols == src.Cols, "ref: Gather: shapes do not agree")
	for i, id := range ids {
		need(id >= 0 && int(id) < src.Rows, "ref: Gather: row id outside src")
		d := dst.RowF32(i)
		for j, v := range row(src, int(id)) {
			d[j] = v * scale
		}
	}
	dst.Buf.Changed()
}

// scatterAdd computes
//
//	for i, j { dst[ids[i],j] += src[i,j] · scale[i] }
func scatterAdd(dst, src kernels.Mat, ids []int32, scale []float32) {
	need(src.Rows == len(ids) && len(scale) == len(ids) && dst.Cols == src.Cols, "ref: ScatterAdd: shapes do not agree")
	for i, id := range ids {
		need(id >= 0 && int(id) < dst.Rows, "ref: ScatterAdd: row id outside dst")
		d := dst.RowF32(int(id))
		for j, v := range src.RowF32(i) {
			d[j] = float32(float64(d[j]) + float64(v)*float64(scale[i]))
		}
	}
	dst.Buf.Changed()
}

// addLowRank computes
//
//	for i, j { dst[i,j] += Σ_k (Σ_c x[i,c]·A[k,c]) · B[k,j] }    // A, B = pairs[i]
func addLowRank(dst, x kernels.Mat, pairs []kernels.LowRank) {
	need(dst.Rows == x.Rows && len(pairs) == x.Rows, "ref: AddLowRank: shapes do not agree")
	for i, p := range pairs {
		if p.A.IsZero() {
			continue
		}
		need(p.A.Rows == p.B.Rows && p.A.Cols == x.Cols && p.B.Cols == dst.Cols, "ref: AddLowRank: shapes do not agree")

		t, xr := make([]float64, p.A.Rows), x.RowF32(i)
		for k := range t {
			for c, v := range p.A.RowF32(k) {
				t[k] += float64(v) * float64(xr[c])
			}
		}

		d := dst.RowF32(i)
		for j := range d {
			sum := float64(d[j])
			for k, v := range t {
				sum += v * float64(p.B.RowF32(k)[j])
			}
			d[j] = float32(sum)
		}
	}
	dst.Buf.Changed()
}

// rmsNorm computes
//
//	for i {
//		r = 1 / sqrt(Σ_j x[i,j]² / c + eps)
//		for j { dst[i,j] = x[i,j] · r · w[j] }    // (1 + w[j]) with plusOne
//	}
func rmsNorm(dst, x, w kernels.Mat, eps float32, plusOne bool) {
	need(sameShape(dst, x) && w.Rows == 1 && w.Cols == x.Cols, "ref: RMSNorm: shapes do not agree")
	one := 0.0
	if plusOne {
		one = 1
	}

	wr := row(w, 0)
	for i := range x.Rows {
		xr, d := x.RowF32(i), dst.RowF32(i)
		sum := 0.0
		for _, v := range xr {
			sum += float64(v) * float64(v)
		}

		r := 1 / math.Sqrt(sum/float64(x.Cols)+float64(eps))
		for j, v := range xr {
			d[j] = float32(float64(v) * r * (one + float64(wr[j])))
		}
	}

	dst.Buf.Changed()
}

// layerNorm computes
//
//	for i {
//		mean = Σ_j x[i,j] / c
//		r = 1 / sqrt(Σ_j (x[i,j] - mean)² / c + eps)
//		for j { dst[i,j] = (x[i,j] - mean) · r · w[j] + b[j] }
//	}
func layerNorm(dst, x, w, b kernels.Mat, eps float32) {
	need(sameShape(dst, x) && w.Rows == 1 && w.Cols == x.Cols, "ref: LayerNorm: shapes do not agree")
	need(b.IsZero() || sameShape(w, b), "ref: LayerNorm: bias is not shaped like the weight")
	wr, br := row(w, 0), make([]float32, x.Cols)
	if !b.IsZero() {
		br = row(b, 0)
	}

	for i := range x.Rows {
		xr, d := x.RowF32(i), dst.RowF32(i)
		mean, variance := moments(xr)
		r := 1 / math.Sqrt(variance+float64(eps))
		for j, v := range xr {
			d[j] = float32((float64(v)-mean)*r*float64(wr[j]) + float64(br[j]))
		}
	}

	dst.Buf.Changed()
}

// moments is the mean and the variance (divided by the count) of x, in two passes.
func moments(x []float32) (mean, variance float64) {
	for _, v := range x {
		mean += float64(v)
	}
	mean /= float64(len(x))
	for _, v := range x {
		variance += (float64(v) - mean) * (float64(v) - mean)
	}
	return mean, variance / float64(len(x))
}

// rope computes, for every row t, head h and pair i < Dim/2,
//
//	a, b = x[t, h·HeadStride + i], x[t, h·HeadStride + i + Dim/2]    // 2i and 2i+1 if Interleaved
//	c, s = Cos[Pos[t], i], Sin[Pos[t], i]                            // -Sin if Inverse
//	a, b = a·c - b·s, b·c + a·s
func rope(x kernels.Mat, r kernels.Rope) {
	stride := r.HeadStride
	if stride == 0 {
		stride = r.HeadDim
	}

	half := r.Dim / 2
	need(r.Dim >= 0 && r.Dim%2 == 0 && r.Dim <= r.HeadDim,
		"ref: RoPE: rotated channels are odd or more than a head has")
	need(len(r.Pos) == x.Rows && (r.Heads == 0 || (r.Heads-1)*stride+r.HeadDim <= x.Cols),
		"ref: RoPE: shapes do not agree")
	need(half == 0 || (r.Cos.Cols == half && sameShape(r.Cos, r.Sin)), "ref: RoPE: tables are not [positions, Dim/2]")

	second := half
	step := 1
	sign := 1.0
	if r.Inverse {
		sign = -1
	}
	if r.Interleaved {
		second, step = 1, 2
	}

	for t := range x.Rows {
		if half == 0 {
			continue
		}

		need(r.Pos[t] >= 0 && int(r.Pos[t]) < r.Cos.Rows, "ref: RoPE: position outside the tables")
		row := x.RowF32(t)
		cos := r.Cos.RowF32(int(r.Pos[t]))
		sin := r.Sin.RowF32(int(r.Pos[t]))
		for h := range r.Heads {
			for i := range half {
				a, b := &row[h*stride+i*step], &row[h*stride+i*step+second]
				av := float64(*a)
				bv := float64(*b)
				c := float64(cos[i])
				s := sign * float64(sin[i])
				*a, *b = float32(av*c-bv*s), float32(bv*c+av*s)
			}
		}
	}

	x.Buf.Changed()
}
