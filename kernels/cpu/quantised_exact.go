package cpu

import (
	"sync"

	"github.com/modelcompress/compress/kernels"
)

// quantSpace is how many bytes of floats a weight is expanded to at a time for kernels that multiply rows in memory.
const quantSpace = 64 << 10

// quantFew is a product in progress of few rows of x and a quantised weight, which is expanded some rows at a time.
type quantFew struct {
	skinnyProduct
	q     *quantOps
	quant kernels.Quantised

	run func(piece int) // runPiece, bound once
}

var quantFews = sync.Pool{New: func() any {
	p := &quantFew{}
	p.run = p.runPiece
	return p
}}

// fewRows is matMul for few rows of x.
func (q *quantOps) fewRows(dst, x kernels.Mat, w kernels.Quantised, o kernels.MatMul) {
	p := quantFews.Get().(*quantFew)
	p.set(&q.ks, dst, x, quantLike(w), o)
	p.q, p.quant = q, w
	p.per = max(4, skinnyBytes/w.Format.RowBytes(w.Cols)/4*4)
	q.d.parallel(pieces(w.Rows(), p.per), p.run)
	p.drop()
	p.quant = kernels.Quantised{}
	quantFews.Put(p)
}

// quantPiece is a piece of a quantFew in progress.
type quantPiece struct {
	skinnyProduct // of the expanded rows
	scratch
}

var quantPieces = sync.Pool{New: func() any { return new(quantPiece) }}

// runPiece computes p.per columns of dst, as many rows of the weight at a time as the scratch memory is to hold.
func (p *quantFew) runPiece(piece int) {
	e := quantPieces.Get().(*quantPiece)
	st := getStage(p.ks, nil)
	e.skinnyProduct = p.skinnyProduct

	rows := max(4, quantSpace/(4*p.quant.Cols)/4*4)
	end := min(p.quant.Rows(), (piece+1)*p.per)
	for j := piece * p.per; j < end; j += rows {
		n := min(rows, end-j)
		e.w = e.mat(kernels.F32, n, p.quant.Cols)
		for r := range n {
			p.q.decode(e.w.RowF32(r), p.quant, j+r, 0)
		}

		e.skinnyProduct.dst = p.skinnyProduct.dst.ColRange(j, j+n)
		if len(p.bias) > 0 {
			e.bias = p.bias[j:][:n]
		}

		e.dotBlock(st, 0, e.x.Rows, 0, n)
	}

	stages.Put(st)
	e.skinnyProduct = skinnyProduct{}
	quantPieces.Put(e)
}

// quantPanels is a panelProduct in progress whose right operand is a quantised weight: a piece expands a block of its
// columns before it packs them.
type quantPanels struct {
	panelProduct
	q *quantOps
	w kernels.Quantised
}

var quantPanelProducts = sync.Pool{New: func() any {
	p := &quantPanels{}
	p.multiply = p.multiplyQuantised
	return p
}}

// manyRows is matMul for many rows of x.
func (q *quantOps) manyRows(dst, x kernels.Mat, w kernels.Quantised, o kernels.MatMul) {
	p := quantPanelProducts.Get().(*quantPanels)
	p.ks = &q.ks
	p.dst = dst
	p.a = operand{Mat: x}
	p.b = operand{Mat: quantLike(w)}
	p.k = w.Cols
	p.o = o
	p.q, p.w = q, w
	p.panelProduct.run(q.d)
	p.w = kernels.Quantised{}
	quantPanelProducts.Put(p)
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// multiplyQuantised is multiplyPiece with a quantised right operand.
func (p *quantPanels) multiplyQuantised(n int) {
	st := getStage(p.ks, p.tile)
	defer stages.Put(st)

	s := scratches.Get().(*scratch)
	defer scratches.Put(s)

	c := p.at(n)
	p.openSums(st, c)
	for block := range pieces(p.k, p.depth) {
		st.block(block, p.depth, p.k)
		dense := s.mat(kernels.F32, c.end-c.j, st.kc)
		for r := range dense.Rows {
			p.q.decode(dense.RowF32(r), p.w, c.j+r, st.k0)
		}
		p.multiplyBlock(st, c, source{operand{Mat: dense}, c.j, st.k0})
	}

	p.storeSums(st, c)
}
