package linalg

import (
	"sync"
	"unsafe"
)

// Product says how [Solver.Mul] reads its operands.
type Product struct {
	TransA, TransB bool
	Minus          bool // the product is subtracted, or its negative written
	Accumulate     bool // dst is added to instead of overwritten
}

// Mul computes dst = op(a)·op(b), or dst ± op(a)·op(b), in float64. dst may not overlap the operands. Sums run over blocks
// of the inner size in a fixed order.
func (s Solver) Mul(dst, a, b Matrix, o Product) {
	x, y := operand{a, o.TransA}, operand{b, o.TransB}
	m, k := x.size()
	kb, n := y.size()
	if k != kb || dst.Rows != m || dst.Cols != n {
		panic("linalg: product of matrices whose shapes do not fit")
	}
	if !o.Accumulate {
		dst.Zero()
	}
	if m == 0 || n == 0 || k == 0 {
		return
	}
	if m*n*k <= smallProduct {
		mulSmall(dst, x, y, k, o.Minus)
		return
	}
	for j := 0; j < n; j += stripCols {
		p := product{dst: dst.Sub(0, m, j, min(n, j+stripCols)), a: x, b: y.cols(j, min(n, j+stripCols)), minus: o.Minus}
		p.run(s, k)
	}
}

// Bounds of the blocks of a product. Right panels of a block stay in the first-level cache while all left panels of a piece
// pass by; the left panels of a piece stay in the second-level cache.
const (
	blockDepth   = 192  // of the inner size
	pieceRows    = 128  // rows of a piece of work
	pieceCols    = 480  // columns of a piece
	stripCols    = 7680 // columns whose right operand is packed at a time
	smallProduct = 2048 // multiplications below which packing does not pay
)

// operand is a matrix or its transpose.
type operand struct {
	Matrix
	trans bool
}

func (o operand) size() (rows, cols int) {
	if o.trans {
		return o.Cols, o.Rows
	}
	return o.Rows, o.Cols
}

// cols views columns [lo, hi) of the operand.
func (o operand) cols(lo, hi int) operand {
	if o.trans {
		return operand{o.Sub(lo, hi, 0, o.Cols), true}
	}
	return operand{o.Sub(0, o.Rows, lo, hi), false}
}

func (o operand) at(i, j int) float64 {
	if o.trans {
		i, j = j, i
	}
	return o.Data[i*o.Stride+j]
}

// mulSmall adds a small product, row by row.
func mulSmall(dst Matrix, a, b operand, k int, minus bool) {
	for i := range dst.Rows {
		row := dst.Row(i)
		for p := range k {
			f := a.at(i, p)
			if minus {
				f = -f
			}
			if b.trans {
				for j := range row {
					row[j] += f * b.Data[j*b.Stride+p]
				}
				continue
			}
			for j, v := range b.Row(p) {
				row[j] += f * v
			}
		}
	}
}

// product is one strip in progress.
type product struct {
	dst         Matrix
	a, b        operand
	minus       bool
	left, right *[]float64
	k0, kc      int // block of the inner size that is packed
}

var packed = sync.Pool{New: func() any { return new([]float64) }}

// scratch takes n values from the pool. Slices of this size start at a page, so panels start at cache lines.
func scratch(n int) *[]float64 {
	p := packed.Get().(*[]float64)
	if cap(*p) < n {
		*p = make([]float64, max(n, 1<<13))
	}
	*p = (*p)[:n]
	return p
}

func (p *product) run(s Solver, k int) {
	m, n := p.dst.Rows, p.dst.Cols
	rows, cols := roundUp(m, kernel.rows), roundUp(n, kernel.cols)
	blocks := pieces(k, blockDepth)
	depth := pieces(k, blocks)
	p.left, p.right = scratch(rows*depth), scratch(cols*depth)
	workers := s.workersFor(m, n, k)
	for p.k0 = 0; p.k0 < k; p.k0 += depth {
		p.kc = min(depth, k-p.k0)
		const group = 8 // panels packed by one piece of work
		lefts, rights := pieces(rows/kernel.rows, group), pieces(cols/kernel.cols, group)
		parallel(workers, lefts+rights, func(i int) {
			if i < lefts {
				p.packLeft(i*group, min((i+1)*group, rows/kernel.rows))
				return
			}
			p.packRight((i-lefts)*group, min((i-lefts+1)*group, cols/kernel.cols))
		})
		down := pieces(m, pieceRows)
		parallel(workers, down*pieces(n, pieceCols), func(i int) { p.multiply(i%down*pieceRows, i/down*pieceCols) })
	}
	packed.Put(p.left)
	packed.Put(p.right)
}

// packLeft packs panels [lo, hi) of rows of a as [k][rows], negated for a subtraction.
func (p *product) packLeft(lo, hi int) {
	for q := lo; q < hi; q++ {
		panel := (*p.left)[q*kernel.rows*p.kc:][:kernel.rows*p.kc]
		packPanel(panel, p.a, q*kernel.rows, kernel.rows, p.k0, p.kc)
		if p.minus {
			for i, v := range panel {
				panel[i] = -v
			}
		}
	}
}

// packRight packs panels [lo, hi) of columns of b as [k][cols].
func (p *product) packRight(lo, hi int) {
	turned := operand{p.b.Matrix, !p.b.trans}
	for q := lo; q < hi; q++ {
		packPanel((*p.right)[q*kernel.cols*p.kc:][:kernel.cols*p.kc], turned, q*kernel.cols, kernel.cols, p.k0, p.kc)
	}
}

// packPanel writes width rows of o from row r, columns [k0, k0+kc), as [kc][width], with zeros after the last row.
func packPanel(dst []float64, o operand, r, width, k0, kc int) {
	rows, _ := o.size()
	rows = min(width, rows-r)
	if o.trans {
		for q := range kc {
			d := dst[q*width:][:width]
			copy(d, o.Data[(k0+q)*o.Stride+r:][:rows])
			clear(d[rows:])
		}
		return
	}
	i := 0
	for ; i+4 <= rows; i += 4 {
		r0, r1 := o.Data[(r+i)*o.Stride+k0:][:kc], o.Data[(r+i+1)*o.Stride+k0:][:kc]
		r2, r3 := o.Data[(r+i+2)*o.Stride+k0:][:kc], o.Data[(r+i+3)*o.Stride+k0:][:kc]
		for q := range kc {
			d := (*[4]float64)(dst[q*width+i:])
			d[0], d[1], d[2], d[3] = r0[q], r1[q], r2[q], r3[q]
		}
	}
	for ; i < width; i++ {
		for q := range kc {
			dst[q*width+i] = 0
			if i < rows {
				dst[q*width+i] = o.Data[(r+i)*o.Stride+k0+q]
			}
		}
	}
}

// multiply computes the piece of dst that starts at (i0, j0).
func (p *product) multiply(i0, j0 int) {
	var edge [maxTile]float64
	for j := j0; j < min(j0+pieceCols, p.dst.Cols); j += kernel.cols {
		for i := i0; i < min(i0+pieceRows, p.dst.Rows); i += kernel.rows {
			t := tileArgs{a: unsafe.Pointer(&(*p.left)[i*p.kc]), b: unsafe.Pointer(&(*p.right)[j*p.kc]), k: p.kc}
			if i+kernel.rows <= p.dst.Rows && j+kernel.cols <= p.dst.Cols {
				t.c, t.ldc = unsafe.Pointer(&p.dst.Data[i*p.dst.Stride+j]), p.dst.Stride*8
				kernel.tile(&t)
				continue
			}
			clear(edge[:])
			t.c, t.ldc = unsafe.Pointer(&edge), kernel.cols*8
			kernel.tile(&t)
			p.addEdge(&edge, i, j)
		}
	}
}

// addEdge adds what of a tile lies inside dst.
func (p *product) addEdge(tile *[maxTile]float64, i, j int) {
	for r := range min(kernel.rows, p.dst.Rows-i) {
		row := p.dst.Row(i + r)[j:min(j+kernel.cols, p.dst.Cols)]
		for c := range row {
			row[c] += tile[r*kernel.cols+c]
		}
	}
}

// pieces is how many pieces of size per cover n.
func pieces(n, per int) int { return (n + per - 1) / per }

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
