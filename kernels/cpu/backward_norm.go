package cpu

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// Sums over the rows of a matrix are made in blocks of rows, in float32 within a block where a gradient wants
// no more, and the sums of the blocks are added in order in float64: the result does not depend on the number
// of threads.
const (
	gradRows = 64 // rows of a block
	gradWave = 64 // blocks whose sums are held at a time
)

// rowSums computes dst[k][j] += Σ_i of what block adds: block(sums, lo, hi) adds rows [lo, hi) to sums, which
// start at zero and have cols elements for every destination. Destinations [1, cols] may be absent.
func (b *backward) rowSums(rows, cols int, dst []kernels.Mat, block func(sums []float32, lo, hi int)) {
	width, blocks := cols*len(dst), pieces(rows, gradRows)
	part, owner := lend(min(blocks, gradWave) * width)
	total := make([]float64, width)
	for first := 0; first < blocks; first += gradWave {
		n := min(gradWave, blocks-first)
		b.each(n, min(n*gradRows, rows)*cols, func(p int) {
			sums, lo := part[p*width:(p+1)*width], (first+p)*gradRows
			clear(sums)
			block(sums, lo, min(lo+gradRows, rows))
		})

		for p := range n { // in the order of the blocks, whoever computed them
			b.g.sum(total, part[p*width:(p+1)*width])
		}
	}

	giveBack(owner)

	for k, d := range dst {
		if !d.IsZero() {
			addTotal(d.RowF32(0), total[k*cols:])
			d.Buf.Changed()
		}
	}
}

// addTotal computes dst[j] += sum[j], rounded once.
func addTotal(dst []float32, sum []float64) {
	for j, v := range dst {
		dst[j] = float32(float64(v) + sum[j])
	}
}

// rmsNorm adds to dx[i,j] r·(dy·w - x·r²·m) with r = 1/sqrt(Σ_j x²/c + eps) and m = Σ_j dy·w·x / c of row i,
// and to dw[j] Σ_i dy·x·r; w is w[j] or 1 + w[j].
func (b *backward) rmsNorm(dx, dw, dy, x, w kernels.Mat, eps float32, plusOne bool) {
	must(sameShape(x, dx) && sameShape(x, dy) && w.Rows == 1 && w.Cols == x.Cols,
		"cpu: RMSNormBackward: shapes do not agree")
	must(dw.IsZero() || sameShape(w, dw), "cpu: RMSNormBackward: dw is not shaped like the weight")
	one := float32(0)
	if plusOne {
		one = 1
	}

	wr, owner := b.wide(w, 0)
	c := float64(x.Cols)
	b.rowSums(x.Rows, x.Cols, []kernels.Mat{dw}, func(sums []float32, lo, hi int) {
		var m [2]float64
		for i := lo; i < hi; i++ {
			xr, g := x.RowF32(i), dy.RowF32(i)
			r := 1 / math.Sqrt(b.v.sumSq(xr)/c+float64(eps))
			b.g.moments(m[:], xr, g, wr, 0, 0, 1, one)
			b.g.norm(dx.RowF32(i), sums, g, xr, wr, 0, 0, float32(r), one, 0, float32(r*m[1]/c))
		}
	})

	giveBack(owner)
	dx.Buf.Changed()
}

// layerNorm adds to dx[i,j] r·(g - mean(g) - n·mean(g·n)) with n = (x - mean)·r, r = 1/sqrt(var + eps) and g =
// dy·w of row i, to dw[j] Σ_i dy·n and to db[j] Σ_i dy.
func (b *backward) layerNorm(dx, dw, db, dy, x, w kernels.Mat, eps float32) {
	must(sameShape(x, dx) && sameShape(x, dy) && w.Rows == 1 && w.Cols == x.Cols,
		"cpu: LayerNormBackward: shapes do not agree")
	must(dw.IsZero() || sameShape(w, dw), "cpu: LayerNormBackward: dw is not shaped like the weight")
	must(db.IsZero() || sameShape(w, db), "cpu: LayerNormBackward: db is not shaped like the weight")
	wr, owner := b.wide(w, 0)
	c := float64(x.Cols)
	b.rowSums(x.Rows, x.Cols, []kernels.Mat{dw, db}, func(sums []float32, lo, hi int) {
		var m [2]float64
		dwSum, dbSum := sums[:x.Cols], sums[x.Cols:]
		for i := lo; i < hi; i++ {
			xr, g := x.RowF32(i), dy.RowF32(i)
			mean := b.v.sum(xr) / c
			r := float32(1 / math.Sqrt(b.v.sumSqDev(xr, mean)/c+float64(eps)))

			// The mean in two floats: subtracted one after the other, they leave x - mean accurate where the mean is
			// large against the deviation.
			m0 := float32(mean)
			m1 := float32(mean - float64(m0))
			b.g.moments(m[:], xr, g, wr, m0, m1, r, 0)
			b.g.norm(dx.RowF32(i), dwSum, g, xr, wr, m0, m1, r, 0, float32(m[0]/c), float32(m[1]/c))
			b.v.add(dbSum, dbSum, g, 1)
		}
	})

	giveBack(owner)
	dx.Buf.Changed()
}

// colSum computes acc[j] += Σ_i x[i,j].
func (b *backward) colSum(acc, x kernels.Mat) {
	must(acc.Rows == 1 && acc.Cols == x.Cols, "cpu: ColSum: shapes do not agree")
	must(acc.DType() == kernels.F32 || acc.DType() == kernels.F64, "cpu: ColSum: acc is not F32 or F64")

	blocks := pieces(x.Rows, gradRows)
	total, part := make([]float64, x.Cols), make([]float64, min(blocks, gradWave)*x.Cols)

	// The order of the sum is fixed by blocks of rows, not by threads, so that any number of them gives the same
	// bits.
	for first := 0; first < blocks; first += gradWave {
		n := min(gradWave, blocks-first)
		b.each(n, min(n*gradRows, x.Rows)*x.Cols, func(p int) {
			lo := (first + p) * gradRows
			b.sumRows(part[p*x.Cols:(p+1)*x.Cols], x.RowRange(lo, min(lo+gradRows, x.Rows)))
		})

		for p := range n {
			for j, v := range part[p*x.Cols : (p+1)*x.Cols] {
				total[j] += v
			}
		}
	}

	if acc.DType() == kernels.F32 {
		addTotal(acc.RowF32(0), total)
	} else {
		for j, v := range total {
			acc.Buf.F64()[acc.Off+j] += v
		}
	}

	acc.Buf.Changed()
}

// sumRows computes sums[j] = Σ_i x[i,j].
func (b *backward) sumRows(sums []float64, x kernels.Mat) {
	clear(sums)
	i := 0
	for ; i+4 <= x.Rows; i += 4 {
		b.g.sumFour(sums, x.Buf.F32()[x.Off+i*x.Stride:], x.Stride)
	}
	for ; i < x.Rows; i++ {
		b.g.sum(sums, x.RowF32(i))
	}
}
