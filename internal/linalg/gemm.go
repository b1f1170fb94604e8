package linalg

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/internal/mmapsafe"
)

// Product says how [Solver.Mul] reads its operands.
type Product struct {
	TransA, TransB bool
	Minus          bool // the product is subtracted, or its negative written
	Accumulate     bool // dst is added to instead of overwritten
}

// Times is op(a)·op(b) as a new matrix; see [Solver.Mul].
func (s Solver) Times(a, b Matrix, o Product) Matrix {
	rows, cols := a.Rows, b.Cols
	if o.TransA {
		rows = a.Cols
	}
	if o.TransB {
		cols = b.Rows
	}

	dst := New(rows, cols)
	s.Mul(dst, a, b, o)
	return dst
}

// Mul computes dst = op(a)·op(b), or dst ± op(a)·op(b), in float64. dst may not overlap the operands. Sums run
// over blocks of the inner size in a fixed order.
func (s Solver) Mul(dst, a, b Matrix, o Product) {
	x, y := operand{a, o.TransA}, operand{b, o.TransB}
	m, k := x.size()
	kb, n := y.size()
	if k != kb || dst.Rows != m || dst.Cols != n {
		panic("linalg: product of matrices whose shapes do not fit")
	}

	if m*n*k <= smallProduct {
		if !o.Accumulate {
			dst.Zero()
		}
		mulSmall(dst, x, y, k, o.Minus)
		return
	}

	s.run(product{dst: dst, a: x, b: y, minus: o.Minus, overwrite: !o.Accumulate}, k)
}

// run computes a product that is not small, in strips whose packed right operand does not grow without bound.
// dst may be an operand if k is at most blockDepth and, for the left one, there is one strip: all that is
// needed is then packed before anything is written.
func (s Solver) run(p product, k int) {
	dst, b := p.dst, p.b
	for p.left0 = 0; p.left0 < dst.Cols; p.left0 += stripCols {
		end := min(dst.Cols, p.left0+stripCols)
		p.dst, p.b = dst.Sub(0, dst.Rows, p.left0, end), b.cols(p.left0, end)
		p.strip(s, k)
	}
}

// Bounds of the blocks of a product. Right panels of a block stay in the first-level cache while all left
// panels of a piece pass by; the left panels of a piece stay in the second-level cache.
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

// shape says which elements of a matrix take part.
type shape uint8

const (
	everything shape = iota
	below            // on and below the diagonal
	above            // on and above it
)

// product is one strip in progress. Shapes are those of the operands as the product sees them, transposed or
// not; what is outside a shape is neither read nor, in dst, written.
type product struct {
	dst                      Matrix
	a, b                     operand
	minus, overwrite         bool
	aShape, bShape, dstShape shape
	left0                    int // column of the whole product at which the strip starts
	left, right              *[]float64
	k0, kc                   int // block of the inner size that is packed
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

func (p *product) strip(s Solver, k int) {
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
		mmapsafe.Each(workers, lefts+rights, func(i int) {
			if i < lefts {
				p.packLeft(i*group, min((i+1)*group, rows/kernel.rows))
				return
			}
			p.packRight((i-lefts)*group, min((i-lefts+1)*group, cols/kernel.cols))
		})

		down := pieces(m, pieceRows)
		mmapsafe.Each(workers, down*pieces(n, pieceCols), func(i int) {
			p.multiply(i%down*pieceRows,
				i/down*pieceCols)
		})
	}

	packed.Put(p.left)
	packed.Put(p.right)
}

// packLeft packs panels [lo, hi) of rows of a as [k][rows], negated for a subtraction.
func (p *product) packLeft(lo, hi int) {
	panels := (*p.left)[lo*kernel.rows*p.kc : hi*kernel.rows*p.kc]
	p.packPanels(panels, p.a, p.aShape, lo*kernel.rows, kernel.rows, lo*kernel.rows)
	if p.minus {
		for i, v := range panels {
			panels[i] = -v
		}
	}
}

// packRight packs panels [lo, hi) of columns of b as [k][cols].
func (p *product) packRight(lo, hi int) {
	panels := (*p.right)[lo*kernel.cols*p.kc : hi*kernel.cols*p.kc]
	p.packPanels(panels, operand{p.b.Matrix, !p.b.trans}, p.bShape.turned(), lo*kernel.cols, kernel.cols,
		p.left0+lo*kernel.cols)
}

// packPanels packs rows of o from row r on, whose number in the whole product is first, into panels of the
// given width, with zeros after the last row and outside the shape.
func (p *product) packPanels(dst []float64, o operand, s shape, r, width, first int) {
	rows, _ := o.size()
	rows = min(rows-r, len(dst)/p.kc)
	if o.trans {
		p.packColumns(dst, o, r, rows, width)
	}

	for i := 0; i*p.kc < len(dst); i += width {
		panel := dst[i*p.kc:][:width*p.kc]
		if !o.trans {
			packPanel(panel, o.Sub(r+min(i, rows), r+min(i+width, rows), p.k0, p.k0+p.kc), width)
		}
		p.mask(panel, s, first+i, width)
	}
}

// packColumns reads a transposed operand as it lies in memory, all panels side by side.
func (p *product) packColumns(dst []float64, o operand, r, rows, width int) {
	for q := range p.kc {
		src := o.Data[(p.k0+q)*o.Stride+r:][:rows]
		for i := 0; i*p.kc < len(dst); i += width {
			d := dst[i*p.kc+q*width:][:width]
			n := copy(d, src[min(i, rows):])
			clear(d[n:])
		}
	}
}

// turned is the shape of the transpose.
func (s shape) turned() shape {
	return [...]shape{everything: everything, below: above, above: below}[s]
}

// depths returns the part [lo, hi) of the inner block that rows [r, r+width) of a shape can have elements in.
func (p *product) depths(s shape, r, width int) (lo, hi int) {
	lo, hi = 0, p.kc
	switch s {
	case below:
		hi = min(hi, r+width-p.k0)
	case above:
		lo = max(lo, r-p.k0)
	}
	return lo, max(lo, hi)
}

// mask zeroes what a packed panel of rows [r, r+width) holds outside its shape, as far as depths does not cut it off.
func (p *product) mask(panel []float64, s shape, r, width int) {
	if s == everything {
		return
	}

	lo, hi := p.depths(s, r, width)
	for q := lo; q < hi; q++ {
		row, at := panel[q*width:][:width], p.k0+q-r // element at of the row is on the diagonal
		switch {
		case s == below && at > 0:
			clear(row[:min(width, at)])
		case s == above && at < width-1:
			clear(row[max(0, at+1):])
		}
	}
}

// packPanel writes the rows of a, at most width, as [k][width], with zeros after the last row.
func packPanel(dst []float64, a Matrix, width int) {
	i, k := 0, len(dst)/width
	for ; i+4 <= a.Rows; i += 4 {
		kernel.turn(dst[i:], width, a.Data[i*a.Stride:], a.Stride, k)
	}

	for ; i < width; i++ {
		for q := range k {
			dst[q*width+i] = 0
			if i < a.Rows {
				dst[q*width+i] = a.Data[i*a.Stride+q]
			}
		}
	}
}

// multiply computes the piece of dst that starts at (i0, j0).
func (p *product) multiply(i0, j0 int) {
	if p.overwrite && p.k0 == 0 {
		p.dst.Sub(i0, min(i0+pieceRows, p.dst.Rows), j0, min(j0+pieceCols, p.dst.Cols)).Zero()
	}

	st := stages.Get().(*stage)
	defer stages.Put(st)

	for j := j0; j < min(j0+pieceCols, p.dst.Cols); j += kernel.cols {
		lo, hi := p.depths(p.bShape.turned(), p.left0+j, kernel.cols)
		for i := i0; i < min(i0+pieceRows, p.dst.Rows); i += kernel.rows {
			from, to := p.depths(p.aShape, i, kernel.rows)
			if from, to = max(from, lo), min(to, hi); from < to {
				p.tile(st, i, j, from, to)
			}
		}
	}
}

// stage is what one piece of work gives its kernel.
type stage struct {
	args tileArgs
	edge [maxTile]float64
}

var stages = sync.Pool{New: func() any { return new(stage) }}

// tile adds to the tile of dst at (i, j) what part [lo, hi) of the inner block gives.
func (p *product) tile(st *stage, i, j, lo, hi int) {
	first := p.left0 + j - i - kernel.rows + 1 // least column minus row in the tile
	last := p.left0 + j - i + kernel.cols - 1  // and largest
	if p.dstShape == below && first > 0 || p.dstShape == above && last < 0 {
		return
	}

	t := &st.args
	t.a, t.b = unsafe.Pointer(&(*p.left)[i*p.kc+lo*kernel.rows]), unsafe.Pointer(&(*p.right)[j*p.kc+lo*kernel.cols])
	t.k = hi - lo

	inside := i+kernel.rows <= p.dst.Rows && j+kernel.cols <= p.dst.Cols
	if inside && (p.dstShape == everything || p.dstShape == below && last <= 0 || p.dstShape == above && first >= 0) {
		t.c, t.ldc = unsafe.Pointer(&p.dst.Data[i*p.dst.Stride+j]), p.dst.Stride*8
		kernel.tile(t)
		return
	}

	st.edge = [maxTile]float64{}
	t.c, t.ldc = unsafe.Pointer(&st.edge), kernel.cols*8
	kernel.tile(t)
	p.addEdge(&st.edge, i, j)
}

// addEdge adds what of a tile lies inside dst and its shape.
func (p *product) addEdge(tile *[maxTile]float64, i, j int) {
	for r := range min(kernel.rows, p.dst.Rows-i) {
		lo, hi := j, min(j+kernel.cols, p.dst.Cols)
		switch p.dstShape {
		case below:
			hi = min(hi, i+r-p.left0+1)
		case above:
			lo = max(lo, i+r-p.left0)
		}

		row := p.dst.Row(i + r)
		for c := lo; c < hi; c++ {
			row[c] += tile[r*kernel.cols+c-j]
		}
	}
}

// pieces is how many pieces of size per cover n.
func pieces(n, per int) int { return (n + per - 1) / per }

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
