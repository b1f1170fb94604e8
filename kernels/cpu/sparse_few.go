package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// sparseSpace is how many bytes of a weight a piece of a product of few rows expands at a time, about: with the piece's part
// of x they stay in the second-level cache.
const sparseSpace = 256 << 10

// sparseRows is how many rows a piece has where tiles multiply.
const sparseRows = 128

// sparseProduct is a product in progress of few rows of x and a sparse weight. directProduct stands for the product with
// the expanded weight: every piece works on a copy of it that has the piece's columns of dst and a dense w in scratch memory.
type sparseProduct struct {
	directProduct
	sparse *sparseKernels
	w      kernels.Sparse
	tiles  bool // multiply by tiles
	per    int  // rows of w per piece

	run func(piece int) // runPiece, bound once
}

var sparseProducts = sync.Pool{New: func() any {
	p := &sparseProduct{}
	p.run = p.runPiece
	return p
}}

// fewRows is matMul for few rows of x.
func (s *sparseOps) fewRows(dst, x kernels.Mat, w kernels.Sparse, o kernels.MatMul) {
	p := sparseProducts.Get().(*sparseProduct)
	p.sparse, p.w = &s.sparse, w
	p.directProduct.set(&s.ks, dst, x, denseLike(w), o)
	p.tiles = s.canDirect(x, p.directProduct.w) && p.packParts()
	if !p.tiles && p.pairs() {
		p.roundX()
	}
	p.per = sparseRows
	if !p.tiles {
		p.per = max(4, sparseSpace/(w.Cols*w.DType().Size())/4*4)
	}
	s.d.parallel(pieces(w.Rows(), p.per), p.run)
	p.w = kernels.Sparse{}
	p.drop()
	sparseProducts.Put(p)
}

// packParts packs x and reports whether its magnitudes allow tiles.
func (p *sparseProduct) packParts() bool {
	p.parts = 3
	if p.o.Precision == kernels.Fast {
		p.parts = 1
	}
	return p.packX() || p.parts == 1
}

// sparsePiece is a piece of a sparseProduct in progress.
type sparsePiece struct {
	directProduct // of the piece's columns of dst
	expander
	scratch
	lo   int             // first row
	next [sparseRows]int // place of the first stored element of every row that was not expanded yet
}

var sparsePieces = sync.Pool{New: func() any { return new(sparsePiece) }}

// runPiece computes p.per columns of dst.
func (p *sparseProduct) runPiece(piece int) {
	q := sparsePieces.Get().(*sparsePiece)
	q.lo = piece * p.per
	rows := min(p.per, p.w.Rows()-q.lo)
	q.directProduct = p.directProduct
	q.dst = p.dst.ColRange(q.lo, q.lo+rows)
	if len(p.bias) > 0 {
		q.bias = p.bias[q.lo:][:rows]
	}
	q.start(p.sparse, p.w)
	st := getStage(p.ks, nil)
	whole := 0
	if p.tiles {
		whole = rows / 32 * 32
		q.multiplyTiles(st, whole)
	}
	q.multiplyRows(st, whole, rows)
	stages.Put(st)
	q.directProduct = directProduct{}
	q.stop()
	sparsePieces.Put(q)
}

// multiplyRows computes columns [j, end) of the piece by the kernels for rows in memory.
func (q *sparsePiece) multiplyRows(st *stage, j, end int) {
	if j == end {
		return
	}
	w := &q.expander.w
	q.directProduct.w = q.mat(w.DType(), end-j, w.Cols)
	for r := range end - j {
		q.row(q.directProduct.w, r, q.lo+j+r, 0, w.Cols, rowOffset(*w, q.lo+j+r))
	}
	all, bias := q.dst, q.bias
	q.dst = all.ColRange(j, end)
	if len(bias) > 0 {
		q.bias = bias[j:end]
	}
	q.dotBlock(st, 0, q.x.Rows, 0, end-j)
	q.dst, q.bias = all, bias
}

// multiplyTiles computes the first n columns of the piece by tiles, a stretch of the inner size at a time.
func (q *sparsePiece) multiplyTiles(st *stage, n int) {
	if n == 0 {
		return
	}
	for r := range n {
		q.next[r] = rowOffset(q.expander.w, q.lo+r)
	}
	step, k := q.parts*2*tileBytes, q.expander.w.Cols
	stretch := 32 * min(sparseSpace/(n*64), directSpace/step)
	a, kernel := &st.direct, q.ks.direct(q.parts, q.x.Rows)
	*a = directArgs{out: unsafe.Pointer(&st.sums), groups: n / 32}
	for k0 := 0; k0 < k; k0 += stretch {
		width := min(stretch, k-k0)
		dense := q.mat(kernels.BF16, n, width)
		for r := range n {
			q.next[r] = q.row(dense, r, q.lo+r, k0, k0+width, q.next[r])
		}
		a.w, a.x = address(dense, 0, 0), unsafe.Pointer(&q.packed[k0/32*step/4])
		a.wStride, a.steps = width*2, width/32
		kernel(a)
		a.acc = 1
	}
	if q.parts > 1 && q.ks.peak32(&st.sums[0], n*32) >= 0x7f800000 {
		q.multiplyRows(st, 0, n) // where infinities stay infinities
		return
	}
	q.storeColumns(st, 0, n)
}
