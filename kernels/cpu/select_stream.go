package cpu

import (
	"sync/atomic"

	"github.com/modelcompress/compress/kernels"
)

const (
	sumRows = 256  // rows that one partial column sum covers
	sumCols = 2048 // columns summed at a time: 16 KiB of F64
	sumWave = 32   // partial sums held at a time
)

// colSumSq implements [kernels.Ops].ColSumSq. Blocks of sumRows rows are summed from top to bottom, each starting at
// zero, and their sums added in order.
func (s selector) colSumSq(acc, x kernels.Mat) {
	if acc.Rows != 1 || acc.Cols != x.Cols {
		panic("cpu: ColSumSq needs acc of [1, cols]")
	}

	dst := acc.Buf.F64()[acc.Off : acc.Off+acc.Cols]

	// Blocks and the order of their sums depend on the shape alone, so results are equal for every number of
	// threads.
	blocks := ceilDiv(x.Rows, sumRows)
	part := make([]float64, min(blocks, sumWave)*x.Cols)
	for first := 0; first < blocks; first += sumWave {
		n := min(sumWave, blocks-first)
		clear(part)
		s.dev.parallel(n, func(p int) {
			lo := (first + p) * sumRows
			s.sumBlock(part[p*x.Cols:(p+1)*x.Cols], x.RowRange(lo, min(lo+sumRows, x.Rows)))
		})

		for p := range n {
			for j, v := range part[p*x.Cols : (p+1)*x.Cols] {
				dst[j] += v
			}
		}
	}

	acc.Buf.Changed()
}

// sumBlock adds the squares of the columns of x to acc.
func (s selector) sumBlock(acc []float64, x kernels.Mat) {
	data := x.Buf.F32()
	for lo := 0; lo < x.Cols; lo += sumCols {
		n := min(sumCols, x.Cols-lo)
		for i := 0; i < x.Rows; i += 4 {
			rows := min(4, x.Rows-i)
			at := x.Off + i*x.Stride + lo
			s.k.sumSq(acc[lo:lo+n], data[at:at+(rows-1)*x.Stride+n], x.Stride, rows)
		}
	}
}

// applyMask implements [kernels.Ops].ApplyMask.
func (s selector) applyMask(w, mask kernels.Mat) {
	if mask.Rows != w.Rows || mask.Cols != w.Cols {
		panic("cpu: ApplyMask needs a mask of the shape of w")
	}
	if w.Dense() && mask.Dense() && w.Len() > 0 {
		w, mask = flat(w), flat(mask)
	}

	g := tiling(w, tileSize)
	s.dev.parallel(g.count(), func(p int) {
		g.each(p, func(i, lo, hi int) {
			m := mask.RowU8(i)[lo:hi]
			if w.DType() == kernels.F32 {
				s.k.zero32(w.RowF32(i)[lo:hi], m)
			} else {
				s.k.zero16(w.RowU16(i)[lo:hi], m)
			}
		})
	})

	w.Buf.Changed()
}

// nonFinite implements [kernels.Ops].NonFinite.
func (s selector) nonFinite(x kernels.Mat) int {
	cols := x.Cols
	if x.Dense() && x.Len() > 0 {
		x, cols = flat(x), x.Len()
	}

	var first atomic.Int64
	first.Store(int64(x.Len()))
	g := tiling(x, tileSize)
	s.dev.parallel(g.count(), func(p int) {
		g.each(p, func(i, lo, hi int) {
			// The first one counts, so what lies behind one that was found need not be looked at.
			if at := int64(i*cols + lo); at < first.Load() {
				if j := s.firstNonFinite(x, i, lo, hi); j >= 0 {
					lower(&first, at+int64(j))
				}
			}
		})
	})

	if at := int(first.Load()); at < x.Len() {
		return at
	}

	return -1
}

// firstNonFinite is the place of the first NaN or infinity in row i, columns [lo, hi), from lo; or -1.
func (s selector) firstNonFinite(x kernels.Mat, i, lo, hi int) int {
	switch x.DType() {
	case kernels.F32:
		return s.k.nonFinite32(x.RowF32(i)[lo:hi])
	case kernels.BF16:
		return s.k.nonFinite16(x.RowU16(i)[lo:hi], 0x7f80)
	}
	return s.k.nonFinite16(x.RowU16(i)[lo:hi], 0x7c00)
}

// lower sets v to n where n is less.
func lower(v *atomic.Int64, n int64) {
	for old := v.Load(); n < old; old = v.Load() {
		if v.CompareAndSwap(old, n) {
			return
		}
	}
}

// countZero implements [kernels.Ops].CountZero.
func (s selector) countZero(x kernels.Mat) int {
	// As one row: many short rows would be many short loops.
	if x.Dense() && x.Len() > 0 {
		x = flat(x)
	}

	// Integers: the order of additions doesn't matter here.
	var total atomic.Int64
	g := tiling(x, tileSize)
	s.dev.parallel(g.count(), func(p int) {
		n := 0
		g.each(p, func(i, lo, hi int) {
			switch x.DType() {
			case kernels.F32:
				n += s.k.zeros32(x.RowF32(i)[lo:hi])
			case kernels.U8:
				n += s.k.zeros8(x.RowU8(i)[lo:hi])
			default:
				n += s.k.zeros16(x.RowU16(i)[lo:hi])
			}
		})

		total.Add(int64(n))
	})

	return int(total.Load())
}

// flat views a dense matrix as one row.
func flat(m kernels.Mat) kernels.Mat {
	m.Rows, m.Cols, m.Stride = 1, m.Len(), m.Len()
	return m
}
