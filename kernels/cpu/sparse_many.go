package cpu

import (
	"slices"
	"sync"

	"github.com/modelcompress/compress/kernels"
)

// sparsePanels is a panelProduct in progress whose right operand is a sparse weight: a piece expands a block of its columns
// before it packs them.
type sparsePanels struct {
	panelProduct
	sparse *sparseKernels
	w      kernels.Sparse
}

var sparsePanelProducts = sync.Pool{New: func() any {
	p := &sparsePanels{}
	p.pack, p.multiply = p.packPiece, p.multiplySparse
	return p
}}

// manyRows is matMul for many rows of x.
func (s *sparseOps) manyRows(dst, x kernels.Mat, w kernels.Sparse, o kernels.MatMul) {
	p := sparsePanelProducts.Get().(*sparsePanels)
	p.ks, p.dst, p.a, p.b, p.k, p.o = &s.ks, dst, operand{Mat: x}, operand{Mat: denseLike(w)}, w.Cols, o
	p.sparse, p.w = &s.sparse, w
	tile := s.ks.choose(dst.Rows, w.DType(), o.Precision)
	rows := evenBlock(dst.Rows, max(pieceRows, packedUnits/p.k), tile.rows)
	for p.i0 = 0; p.i0 < dst.Rows; p.i0 += rows {
		p.mc = min(rows, dst.Rows-p.i0)
		p.rowBlock(s.d, tile)
	}
	p.dst, p.a, p.o, p.w = kernels.Mat{}, operand{}, kernels.MatMul{}, kernels.Sparse{}
	sparsePanelProducts.Put(p)
}

// panelExpander expands the columns of a piece, block by block.
type panelExpander struct {
	expander
	scratch
	next  []int       // place of the first stored element of every row after the last block
	dense kernels.Mat // the block
}

var panelExpanders = sync.Pool{New: func() any { return new(panelExpander) }}

// begin starts with rows [j, end) of the weight.
func (e *panelExpander) begin(k *sparseKernels, w kernels.Sparse, j, end int) {
	e.start(k, w)
	e.next = slices.Grow(e.next[:0], end-j)
	for ; j < end; j++ {
		e.next = append(e.next, rowOffset(w, j))
	}
}

// block expands the next n columns, from column k0, of the rows from j.
func (e *panelExpander) block(j, k0, n int) {
	e.dense = e.mat(e.w.DType(), len(e.next), n)
	for r, next := range e.next {
		e.next[r] = e.row(e.dense, r, j+r, k0, k0+n, next)
	}
}

// multiplySparse is multiplyPiece with a sparse right operand.
func (p *sparsePanels) multiplySparse(n int) {
	st := getStage(p.ks, p.tile)
	defer stages.Put(st)
	e := panelExpanders.Get().(*panelExpander)
	defer panelExpanders.Put(e)
	width := p.cols * p.tile.cols
	across := pieces(p.dst.Cols, width)
	lo, j := n/across*p.rows, n%across*width
	c := piece{lo, min(p.panels, lo+p.rows), j, min(p.dst.Cols, j+width)}
	if !p.o.Bias.IsZero() {
		p.startBias(c)
	}
	e.begin(p.sparse, p.w, c.j, c.end)
	for block := range pieces(p.k, p.depth) {
		st.block(block, p.depth, p.k)
		e.block(c.j, st.k0, st.kc)
		p.multiplyExpanded(st, e, c, block)
	}
	e.stop()
}

// multiplyExpanded adds the block that e holds to a piece.
func (p *sparsePanels) multiplyExpanded(st *stage, e *panelExpander, c piece, block int) {
	t := p.tile
	size := t.panelSize(t.cols, st.kc, t.bParts)
	st.right = grow(st.right, pieces(c.end-c.j, t.cols)*size)
	st.split.peak = 0
	for j := c.j; j < c.end; j += t.cols {
		st.packExpanded(st.right[(j-c.j)/t.cols*size:][:size], e.dense, j-c.j)
	}
	if t.aParts > 1 && !splittable(st.split.peak) {
		p.exactExpanded(st, e, c)
		return
	}
	for j := c.j; j < c.end; j += t.cols {
		p.multiplyPanel(st, c, j, p.leftPanels(block, c.lo), st.right[(j-c.j)/t.cols*size:])
	}
}

// exactExpanded is exactBlock for the block that e holds.
func (p *sparsePanels) exactExpanded(st *stage, e *panelExpander, c piece) {
	t := &p.ks.exact
	st.tile = t
	defer func() { st.tile = p.tile }()
	size := t.panelSize(t.cols, st.kc, 0)
	st.right = grow(st.right, size+t.panelSize(t.rows, st.kc, 0))
	right, left := st.right[:size], st.right[size:]
	for j := c.j; j < c.end; j += t.cols {
		st.packExpanded(right, e.dense, j-c.j)
		for i := c.lo * p.tile.rows; i < min(p.mc, c.hi*p.tile.rows); i += t.rows {
			st.packLeft(left, p.a, p.i0+i)
			p.multiplyEdge(st, left, right, c, i, j)
		}
	}
}

// packExpanded packs the panel that starts at row r of a block, which has the columns of the block alone.
func (st *stage) packExpanded(dst []uint32, dense kernels.Mat, r int) {
	k0 := st.k0
	st.k0 = 0
	st.packRight(dst, operand{Mat: dense}, r)
	st.k0 = k0
}
