package cpu

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// gather computes dst[i,j] = src[ids[i],j] · scale.
func (l *layers) gather(dst, src kernels.Mat, ids []int32, scale float32) {
	must(dst.Rows == len(ids) && dst.Cols == src.Cols, "cpu: Gather: shapes do not agree")
	for _, id := range ids {
		must(id >= 0 && int(id) < src.Rows, "cpu: Gather: row id outside src")
	}

	l.each(dst.Rows, dst.Len(), func(i int) {
		d := dst.RowF32(i)
		if src.DType() == kernels.F32 {
			l.v.scale(d, src.RowF32(int(ids[i])), scale)
			return
		}
		l.widen(d, src, int(ids[i]))
		if scale != 1 {
			l.v.scale(d, d, scale)
		}
	})

	dst.Buf.Changed()
}

// scatterAdd computes dst[ids[i],j] += src[i,j] · scale[i].
func (l *layers) scatterAdd(dst, src kernels.Mat, ids []int32, scale []float32) {
	must(src.Rows == len(ids) && len(scale) == len(ids) && dst.Cols == src.Cols, "cpu: ScatterAdd: shapes do not agree")
	for _, id := range ids {
		must(id >= 0 && int(id) < dst.Rows, "cpu: ScatterAdd: row id outside dst")
	}
	l.each(src.Rows, src.Len(), func(i int) {
		d := dst.RowF32(int(ids[i]))
		l.v.add(d, d, src.RowF32(i), scale[i])
	})
	dst.Buf.Changed()
}

// addLowRank computes dst[i,j] += Σ_k (x[i]·A[k]) · B[k,j] with A and B of pairs[i]. A row is computed as if it were
// alone: rows of generated text are few, and each may have factors of its own.
func (l *layers) addLowRank(dst, x kernels.Mat, pairs []kernels.LowRank) {
	must(dst.Rows == x.Rows && len(pairs) == x.Rows, "cpu: AddLowRank: shapes do not agree")
	work := 0
	for _, p := range pairs {
		if p.A.IsZero() {
			continue
		}
		must(p.A.Rows == p.B.Rows && p.A.Cols == x.Cols && p.B.Cols == dst.Cols, "cpu: AddLowRank: shapes do not agree")
		work += p.A.Len() + p.B.Len()
	}

	l.each(len(pairs), work/4, func(i int) {
		p := pairs[i]
		if p.A.IsZero() || p.A.Len() == 0 || p.B.Len() == 0 {
			return
		}

		t, owner := lend(p.A.Rows)
		defer giveBack(owner)
		l.v.dots(t, x.RowF32(i), p.A.Buf.F32()[p.A.Off:], p.A.Stride)
		l.v.weigh(dst.RowF32(i), t, p.B.Buf.F32()[p.B.Off:], p.B.Stride, 1)
	})
	dst.Buf.Changed()
}

// rmsNorm computes dst[i,j] = x[i,j] / sqrt(Σ_j x[i,j]²/c + eps) · w[j], or · (1 + w[j]) with plusOne.
func (l *layers) rmsNorm(dst, x, w kernels.Mat, eps float32, plusOne bool) {
	must(sameShape(dst, x) && w.Rows == 1 && w.Cols == x.Cols, "cpu: RMSNorm: shapes do not agree")
	one := float32(0)
	if plusOne {
		one = 1
	}

	wr, owner := l.wide(w, 0)
	l.each(x.Rows, x.Len(), func(i int) {
		xr := x.RowF32(i)
		r := 1 / math.Sqrt(l.v.sumSq(xr)/float64(x.Cols)+float64(eps))
		l.v.norm(dst.RowF32(i), xr, wr, float32(r), one)
	})

	giveBack(owner)
	dst.Buf.Changed()
}

// layerNorm computes dst[i,j] = (x[i,j] - mean) / sqrt(var + eps) · w[j] + b[j] with mean and var of row i.
func (l *layers) layerNorm(dst, x, w, b kernels.Mat, eps float32) {
	must(sameShape(dst, x) && w.Rows == 1 && w.Cols == x.Cols, "cpu: LayerNorm: shapes do not agree")
	must(b.IsZero() || sameShape(w, b), "cpu: LayerNorm: bias is not shaped like the weight")
	wr, wOwner := l.wide(w, 0)

	var br []float32
	var bOwner *[]float32
	if b.IsZero() {
		br, bOwner = lend(x.Cols)
		clear(br)
	} else {
		br, bOwner = l.wide(b, 0)
	}

	l.each(x.Rows, x.Len(), func(i int) {
		xr := x.RowF32(i)
		mean := l.v.sum(xr) / float64(x.Cols)
		r := 1 / math.Sqrt(l.v.sumSqDev(xr, mean)/float64(x.Cols)+float64(eps))
		// The mean goes in as two floats: rows with a large common offset keep their digits.
		m0 := float32(mean)
		l.v.affine(dst.RowF32(i), xr, wr, br, m0, float32(mean-float64(m0)), float32(r))
	})

	giveBack(wOwner)
	giveBack(bOwner)
	dst.Buf.Changed()
}

// rope rotates the channel pairs of every row and head as [kernels.Rope] says.
func (l *layers) rope(x kernels.Mat, r kernels.Rope) {
	if r.HeadStride == 0 {
		r.HeadStride = r.HeadDim
	}

	checkRope(x, r)
	if r.Dim == 0 {
		return
	}

	rotate := l.v.rope
	if r.Interleaved {
		rotate = l.v.ropePairs
	}

	l.each(x.Rows, x.Rows*r.Heads*r.Dim, func(t int) {
		sin, owner := l.sine(r, int(r.Pos[t]))
		rotate(x.RowF32(t), r.Cos.RowF32(int(r.Pos[t])), sin, r.Heads, r.HeadStride)
		giveBack(owner)
	})

	x.Buf.Changed()
}

// sine is the row of sines of a position, negative for the inverse; give owner back if not nil.
func (l *layers) sine(r kernels.Rope, pos int) (row []float32, owner *[]float32) {
	row = r.Sin.RowF32(pos)
	if !r.Inverse {
		return row, nil
	}
	negative, owner := lend(len(row))
	l.v.scale(negative, row, -1)
	return negative, owner
}

func checkRope(x kernels.Mat, r kernels.Rope) {
	must(r.Dim >= 0 && r.Dim%2 == 0 && r.Dim <= r.HeadDim,
		"cpu: RoPE: rotated channels are odd or more than a head has")
	must(len(r.Pos) == x.Rows && (r.Heads == 0 || (r.Heads-1)*r.HeadStride+r.HeadDim <= x.Cols),
		"cpu: RoPE: shapes do not agree")
	if r.Dim == 0 {
		return
	}

	must(r.Cos.Cols == r.Dim/2 && sameShape(r.Cos, r.Sin), "cpu: RoPE: tables are not [positions, Dim/2]")
	for _, p := range r.Pos {
		must(p >= 0 && int(p) < r.Cos.Rows, "cpu: RoPE: position outside the tables")
	}
}
