package cpu

import (
	"slices"
	"sync"

	"github.com/modelcompress/compress/kernels"
)

// sparsePanels is a panelProduct in progress whose right operand is a sparse weight: a piece expands a block of
// its columns before it packs them.
type sparsePanels struct {
	panelProduct
	sparse *sparseKernels
	w      kernels.Sparse
}

var sparsePanelProducts = sync.Pool{New: func() any {
	p := &sparsePanels{}
	p.multiply = p.multiplySparse
	return p
}}

// manyRows is matMul for many rows of x.
func (s *sparseOps) manyRows(dst, x kernels.Mat, w kernels.Sparse, o kernels.MatMul) {
	p := sparsePanelProducts.Get().(*sparsePanels)
	p.ks, p.dst, p.a, p.b, p.k, p.o = &s.ks, dst, operand{Mat: x}, operand{Mat: denseLike(w)}, w.Cols, o
	p.sparse, p.w = &s.sparse, w
	p.panelProduct.run(s.d)
	p.w = kernels.Sparse{}
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

	c := p.at(n)
	p.openSums(st, c)
	e.begin(p.sparse, p.w, c.j, c.end)

	for block := range pieces(p.k, p.depth) {
		st.block(block, p.depth, p.k)
		e.block(c.j, st.k0, st.kc)
		p.multiplyBlock(st, c, source{operand{Mat: e.dense}, c.j, st.k0})
	}

	e.stop()
	p.storeSums(st, c)
}
