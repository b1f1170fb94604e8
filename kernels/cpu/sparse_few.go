package cpu

import (
	"slices"
	"sync"

	"github.com/modelcompress/compress/kernels"
)

// sparseSpace is how many bytes of a weight are expanded at a time for kernels that multiply rows in memory,
// about: they stay in the second-level cache.
const sparseSpace = 256 << 10

// sparseChunks is how many chunks of directRows rows of x a sparseProduct takes at most, which bounds the
// memory of packed x.
const sparseChunks = 8

// sparseProduct is a product in progress of a sparse weight. x is cut into chunks of rows; every piece of work
// takes some rows of the weight, whose stored elements stay in the second-level cache for all chunks.
type sparseProduct struct {
	sparse *sparseKernels
	w      kernels.Sparse
	chunks []sparseChunk
	per    int // rows of w per piece

	pack, run func(piece int) // packChunk and runPiece, bound once
}

// sparseChunk is the product of some rows of x. directProduct stands for the product with the expanded weight:
// a piece works on a copy of it that has the piece's columns of dst and a dense w in scratch memory.
type sparseChunk struct {
	directProduct
	tiles bool // multiply by tiles
}

var sparseProducts = sync.Pool{New: func() any {
	p := &sparseProduct{}
	p.pack, p.run = p.packChunk, p.runPiece
	return p
}}

// fewRows is matMul for few rows of x, or any number where tiles multiply.
func (s *sparseOps) fewRows(dst, x kernels.Mat, w kernels.Sparse, o kernels.MatMul) {
	p := sparseProducts.Get().(*sparseProduct)
	p.sparse, p.w = &s.sparse, w
	for i := 0; i < x.Rows; i += sparseChunks * directRows {
		end := min(x.Rows, i+sparseChunks*directRows)
		p.chunkRows(s, dst.RowRange(i, end), x.RowRange(i, end), o)
	}
	p.w = kernels.Sparse{}
	sparseProducts.Put(p)
}

// chunkRows is fewRows for at most sparseChunks chunks.
func (p *sparseProduct) chunkRows(s *sparseOps, dst, x kernels.Mat, o kernels.MatMul) {
	n := pieces(x.Rows, directRows)
	p.chunks = slices.Grow(p.chunks[:0], n)[:n]
	for c := range p.chunks {
		lo, hi := c*directRows, min(x.Rows, (c+1)*directRows)
		p.chunks[c].set(&s.ks, dst.RowRange(lo, hi), x.RowRange(lo, hi), denseLike(p.w), o)
		p.chunks[c].tiles = s.canTile(p.w)
	}

	s.d.parallel(n, p.pack)
	p.per = max(4, sparseSpace/(p.w.Cols*p.w.DType().Size())/4*4)
	if s.canTile(p.w) {
		p.per = tilePieceRows(p.w, n)
	}

	s.d.parallel(pieces(p.w.Rows(), p.per), p.run)
	for c := range p.chunks {
		p.chunks[c].drop()
	}
}

// packChunk brings the x of a chunk into the order of its kernels. A chunk whose magnitudes forbid parts gets no tiles.
func (p *sparseProduct) packChunk(c int) {
	k := &p.chunks[c]
	if k.pairs() {
		k.roundX()
	}
	if !k.tiles {
		k.packBlocks()
		return
	}

	k.parts = 3
	if k.o.Precision == kernels.Fast {
		k.parts = 1
	}

	k.tiles = k.packX() || k.parts == 1
}

// sparsePiece is a piece of a sparseProduct in progress.
type sparsePiece struct {
	directProduct // of a chunk and the piece's columns of dst
	expander
	scratch
	tileKernel func(parts, rows int) func(*sparseTileArgs)
	lo         int // first row of w
	groups     [maxSparseGroups]sparseTileArgs
}

var sparsePieces = sync.Pool{New: func() any { return new(sparsePiece) }}

// runPiece computes p.per columns of dst.
func (p *sparseProduct) runPiece(piece int) {
	q := sparsePieces.Get().(*sparsePiece)
	q.lo, q.tileKernel = piece*p.per, p.sparse.tiles
	q.start(p.sparse, p.w)

	// Every chunk of x expands the rows again: their stored elements are in the second-level cache by then, where the
	// dense rows of a whole piece need not fit.
	rows := min(p.per, p.w.Rows()-q.lo)
	st := getStage(p.chunks[0].ks, nil)
	for c := range p.chunks {
		k := &p.chunks[c]
		q.directProduct = k.directProduct
		q.dst = k.dst.ColRange(q.lo, q.lo+rows)
		if len(k.bias) > 0 {
			q.bias = k.bias[q.lo:][:rows]
		}

		whole := 0
		if k.tiles && rows >= 32 {
			whole = rows / 32 * 32
			q.multiplyTiles(st, whole)
		}

		q.multiplyRows(st, whole, rows)
	}

	stages.Put(st)
	q.directProduct = directProduct{}
	q.stop()
	clear(q.groups[:])
	sparsePieces.Put(q)
}

// multiplyRows computes columns [j, end) of the piece by the kernels for rows in memory, as many at a time as
// the scratch memory is to hold.
func (q *sparsePiece) multiplyRows(st *stage, j, end int) {
	w, dst, bias := &q.expander.w, q.dst, q.bias
	per := max(4, sparseSpace/(w.Cols*w.DType().Size())/4*4)
	for ; j < end; j += per {
		n := min(per, end-j)
		q.directProduct.w = q.mat(w.DType(), n, w.Cols)
		for r := range n {
			row := q.lo + j + r
			q.row(q.directProduct.w, r, row, 0, w.Cols, rowOffset(*w, row))
		}

		q.dst = dst.ColRange(j, j+n)
		if len(bias) > 0 {
			q.bias = bias[j:][:n]
		}

		q.dotBlock(st, 0, q.x.Rows, 0, n)
	}

	q.dst, q.bias = dst, bias
}
