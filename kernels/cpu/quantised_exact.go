package cpu

import (
	"sync"
	"unsafe"

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
	p.packBlocks()
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

// codeRows is a product in progress of few rows of x and a quantised weight, whose codes are multiplied without being
// stored as floats. For a single row of x, rows of the weight are read as they lie in memory by a kernel for their
// format. For several, codes are taken apart, a part of some rows at a time that stays in the first-level cache, and
// multiplied by up to codeRowsMost rows of x at a time. Every sum has the same order either way: what a row of x gets
// does not depend on the others.
type codeRows struct {
	skinnyProduct // dst and x, the bias
	q             *quantOps
	w             kernels.Quantised
	depth         int // of a part

	run func(piece int) // runPiece, bound once
}

var codeRowProducts = sync.Pool{New: func() any {
	p := &codeRows{}
	p.run = p.runPiece
	return p
}}

// canCode reports whether codeRows applies.
func (q *quantOps) canCode(w kernels.Quantised) bool {
	return q.q.dot[spreadKind(w)][0] != nil && w.Cols%codeGroup == 0 && (!w.Format.Grouped() || even(w))
}

// codeRows is matMul for few rows of x where canCode holds.
func (q *quantOps) codeRows(dst, x kernels.Mat, w kernels.Quantised, o kernels.MatMul) {
	p := codeRowProducts.Get().(*codeRows)
	p.set(&q.ks, dst, x, quantLike(w), o)
	p.q, p.w = q, w
	p.depth = w.Cols
	p.per = quantRowsOf(w)
	if x.Rows > 1 {
		depth := codeDepth
		if x.Rows > codeRowsMost {
			depth = codeDepthMany
		}
		p.depth = min(w.Cols, evenBlock(w.Cols, depth, 256))
		together := codeSpace / p.depth
		p.per = max(together, p.per/together*together)
	}
	q.d.parallel(pieces(w.Rows(), p.per), p.run)
	p.drop()
	p.w = kernels.Quantised{}
	codeRowProducts.Put(p)
}

// codeSpace is how many codes are taken apart at a time: half of a small first-level cache. Of up to codeRowsMost rows
// of x they are codeDepth columns at most, whose floats come from the second-level cache at the latest. Of more rows
// they are codeDepthMany: then the floats of four rows fit beside the codes, and enough rows of the weight are taken
// apart together to make up for fetching one four after the other.
const (
	codeSpace     = 16 << 10
	codeDepth     = 2 << 10
	codeDepthMany = 768
)

// codeStage is the scratch memory of a piece of codeRows.
type codeStage struct {
	codes    [codeSpace]int8
	mul, add [codeSpace / 16]float32
	sums     []float32
	zeros    []float32 // of rows of weights, group by group
	out      []float32 // [rows of x][columns of a piece]
	unpack   unpackArgs
	dot      codeArgs
	row      rowArgs
}

var codeStages = sync.Pool{New: func() any { return new(codeStage) }}

// runPiece computes p.per columns of dst.
func (p *codeRows) runPiece(piece int) {
	s := codeStages.Get().(*codeStage)
	first := piece * p.per
	end := min(p.w.Rows(), first+p.per)
	n := end - first
	at := p.dst.Off + first
	out, stride := p.skinnyProduct.out[at:], p.dst.Stride
	plain := len(p.bias) == 0 && !p.o.Accumulate
	if !plain {
		s.out = growFloats(s.out, n*p.x.Rows)
		out, stride = s.out, n
	}

	if p.x.Rows == 1 {
		p.multiplyRows(s, out, first, end)
	} else {
		p.multiply(s, out, stride, first, end)
	}

	for i := 0; !plain && i < p.x.Rows; i++ {
		p.storeSums(p.skinnyProduct.out[at+i*p.dst.Stride:][:n], s.out[i*n:][:n], 1, first)
	}
	s.unpack, s.dot = unpackArgs{}, codeArgs{}
	s.row = rowArgs{}
	codeStages.Put(s)
}

// multiplyRows computes the sums of rows [first, end) of the weight by the kernel for its format.
func (p *codeRows) multiplyRows(s *codeStage, out []float32, first, end int) {
	run := p.q.q.exact[p.w.Format]
	elements, _ := p.w.Format.Block()
	a := &s.row
	*a = rowArgs{
		w: address(p.w.Data, first, 0), stride: p.w.Data.Stride, rows: end - first,
		steps: p.w.Cols / max(elements, codeGroup), codes: address(p.x, 0, 0), out: unsafe.Pointer(&out[0]),
	}
	if p.w.Format.Grouped() {
		a.mul = address(p.w.Scales, first, 0)
		a.mulStride = p.w.Scales.Stride * 4
		a.perGroup = pieces(min(p.w.Group, p.w.Cols), codeGroup)
	}
	if !p.w.Zeros.IsZero() {
		run = p.q.q.exactZeros[p.w.Format]
		groups := p.w.Groups()
		s.zeros = growFloats(s.zeros, (end-first)*groups)
		for i := first; i < end; i++ {
			zerosOf(s.zeros[(i-first)*groups:][:groups], p.w, i, 0)
		}
		a.sums = unsafe.Pointer(&s.zeros[0])
	}
	run(a)
}

// multiply computes the sums of rows [first, end) of the weight for all rows of x; those of a row lie stride floats
// apart in out.
func (p *codeRows) multiply(s *codeStage, out []float32, stride, first, end int) {
	together := codeSpace / p.depth
	if p.depth < p.w.Cols {
		s.sums = growFloats(s.sums, together*p.x.Rows*2*p.q.q.lanes)
	}

	for j := first; j < end; j += together {
		rows := min(together, end-j)
		for k := 0; k < p.w.Cols; k += p.depth {
			n := min(p.depth, p.w.Cols-k)
			p.takeApart(s, j, rows, k, n)
			for i := 0; i < p.x.Rows; i += codeRowsMost {
				p.add(s, out[i*stride+j-first:], stride, i, k, n)
			}
		}
	}
}

// takeApart takes n columns of some rows of the weight, from row j and column k on, apart, and readies s.dot for them.
func (p *codeRows) takeApart(s *codeStage, j, rows, k, n int) {
	const unit = 16 // the smallest group with a factor of its own
	a := &s.unpack
	*a = unpackArgs{
		dst: unsafe.Pointer(&s.codes), mul: unsafe.Pointer(&s.mul), add: unsafe.Pointer(&s.add), rows: rows,
		dstStride: n, scaleStride: n / unit * 4, minus: minusOf(p.w),
	}
	p.q.takeApart(a, p.w, j, k, n)

	groups := n / codeGroup
	for r := 0; r < rows && p.w.Format.Grouped(); r++ {
		at := r * n / unit
		scalesBeside(s.mul[at:][:groups], s.add[at:][:groups], p.w, j+r, k)
	}
	if spreadKind(p.w) == spreadMul16 {
		groups *= 2
	}

	s.dot = codeArgs{
		codes: a.dst, mul: a.mul, add: a.add, xStride: p.x.Stride * 4, groups: groups, rows: rows, stride: n,
		scaleStride: n / unit * 4,
	}
	if k > 0 {
		s.dot.goesOn = 1
	}
	if k+n < p.w.Cols {
		s.dot.goesOnLater = 1
	}
}

// add multiplies the codes that have been taken apart, n columns from column k on, by up to codeRowsMost rows of x from
// row i on.
func (p *codeRows) add(s *codeStage, out []float32, stride, i, k, n int) {
	together, rows := codeSpace/p.depth, min(codeRowsMost, p.x.Rows-i)
	a := s.dot // kernels move its operands on
	s.dot.x = address(p.x, i, k)
	s.dot.out, s.dot.outStride = unsafe.Pointer(&out[0]), stride*4
	if n < p.w.Cols {
		s.dot.sums = unsafe.Pointer(&s.sums[together*i*2*p.q.q.lanes])
	}
	p.q.q.dot[spreadKind(p.w)][rows-1](&s.dot)
	s.dot = a
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
