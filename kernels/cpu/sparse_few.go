package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// sparseSpace is how many bytes of a weight a piece of a product of few rows expands at a time, about: with the piece's part
// of x they stay in the second-level cache.
const sparseSpace = 256 << 10

// sparseRows is how many rows a piece has where tiles multiply: 32 at a time, which a kernel expands into tiles and multiplies.
const sparseRows = 128

// sparseTileArgs are the operands of a tile kernel: out[j][i] (+)= Σ_p w[j][p]·x[i][p] for 32 rows j of w and steps steps of
// 32 p; see directArgs for x and out. The stored elements of the rows are at values, which move on. The assembly knows the
// offsets.
type sparseTileArgs struct {
	mask, x, out unsafe.Pointer
	buffer       unsafe.Pointer // 4096 bytes of scratch memory
	maskStride   int            // bytes
	steps        int
	ahead        int // bytes that elements are prefetched ahead
	acc          int // 0 overwrites out, 1 adds to it
	values       [32]uintptr
}

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
	p.tiles = s.canTile(x, w) && p.packParts()
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

// canTile reports whether the tile kernels apply, magnitudes of x apart.
func (s *sparseOps) canTile(x kernels.Mat, w kernels.Sparse) bool {
	return s.sparse.tiles != nil && s.canDirect(x, denseLike(w))
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
	tileKernel func(parts, rows int) func(*sparseTileArgs)
	lo         int // first row
	tiles      [sparseRows / 32]sparseTileArgs
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
	q.tileKernel = p.sparse.tiles
	st := getStage(p.ks, nil)
	whole := 0
	if p.tiles && rows >= 32 {
		whole = rows / 32 * 32
		q.multiplyTiles(st, whole)
	}
	q.multiplyRows(st, whole, rows)
	stages.Put(st)
	q.directProduct = directProduct{}
	q.stop()
	clear(q.tiles[:])
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

// multiplyTiles computes the first n > 0 columns of the piece by tiles, a stretch of the inner size at a time, whose packed x
// stays in the second-level cache.
func (q *sparsePiece) multiplyTiles(st *stage, n int) {
	step, k := q.parts*2*tileBytes, q.expander.w.Cols
	stretch := 32 * max(1, directSpace/step)
	kernel := q.tileKernel(q.parts, q.x.Rows)
	for k0 := 0; k0 < k; k0 += stretch {
		for g := range n / 32 {
			a := q.tile(st, g, k0)
			a.x, a.steps, a.acc = unsafe.Pointer(&q.packed[k0/32*step/4]), min(stretch, k-k0)/32, min(k0, 1)
			kernel(a)
		}
	}
	if q.parts > 1 && q.ks.peak32(&st.sums[0], n*32) >= 0x7f800000 {
		q.multiplyRows(st, 0, n) // where infinities stay infinities
		return
	}
	q.storeColumns(st, 0, n)
}

// tile sets the operands of group g of 32 rows for the columns from k0 on.
func (q *sparsePiece) tile(st *stage, g, k0 int) *sparseTileArgs {
	a, w, row := &q.tiles[g], q.expander.w, q.lo+32*g
	a.mask, a.out, a.buffer = address(w.Mask, row, k0/8), unsafe.Pointer(&st.sums[g*32*32]), aligned(&st.f32)
	if k0 == 0 {
		a.maskStride, a.ahead = w.Mask.Stride, sparseAhead
		for r := range a.values {
			a.values[r] = valuesAt(w, rowOffset(w, row+r))
		}
	}
	return a
}

// aligned is the first address in p that is a multiple of 64.
func aligned(p *[stageUnits]float32) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(p), -uintptr(unsafe.Pointer(p))&63)
}

// sparseAhead is how far the tile kernels prefetch, in bytes: 32 rows at once share the first-level cache.
const sparseAhead = 256
