package cpu

import (
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// maxSparseGroups is how many groups of 32 rows of a weight a piece has at most where tiles multiply; see
// tilePieceRows.
const maxSparseGroups = 8

// sparseKept is how many bytes of a weight a piece has at most where it is read again for every chunk of x:
// they stay in the second-level cache.
const sparseKept = 1 << 20

// tilePieceRows is how many rows a piece has where tiles multiply chunks chunks of x: the more, the less often
// x is read again.
func tilePieceRows(w kernels.Sparse, chunks int) int {
	if chunks == 1 {
		return maxSparseGroups / 2 * 32
	}
	stored := (rowOffset(w, w.Rows()-1) - rowOffset(w, 0)) / max(1, w.Rows()-1)
	row := stored*w.DType().Size() + w.Mask.Cols
	return min(maxSparseGroups, max(1, sparseKept/row/32)) * 32
}

// sparseAhead is how far the tile kernels prefetch, in bytes: the elements of 32 rows at once share the
// first-level cache.
const sparseAhead = 128

// sparseTileArgs are the operands of a tile kernel: out[j][i] (+)= Σ_p w[j][p]·x[i][p] for 32 rows j of w and
// steps steps of 32 p; see directArgs for x and out. The stored elements of the rows are at values, which move
// on. The assembly knows the offsets.
type sparseTileArgs struct {
	mask, x, out unsafe.Pointer
	buffer       unsafe.Pointer // 4096 bytes of scratch memory
	maskStride   int            // bytes
	steps        int
	ahead        int // bytes that elements are prefetched ahead
	acc          int // 0 overwrites out, 1 adds to it
	values       [32]uintptr
}

// canTile reports whether the tile kernels apply, magnitudes of x apart.
func (s *sparseOps) canTile(w kernels.Sparse) bool {
	return s.sparse.tiles != nil && w.DType() == kernels.BF16 && w.Cols%32 == 0 && w.Rows() >= 32
}

// multiplyTiles computes the first n > 0 columns of the piece by tiles, a stretch of the inner size at a time,
// whose packed x stays in the second-level cache.
func (q *sparsePiece) multiplyTiles(st *stage, n int) {
	step, k := q.parts*2*tileBytes, q.expander.w.Cols
	stretch := 32 * max(1, directSpace/step)
	kernel := q.tileKernel(q.parts, q.x.Rows)
	for k0 := 0; k0 < k; k0 += stretch {
		for g := range n / 32 {
			a := q.group(st, g, k0)
			a.x = unsafe.Pointer(&q.packed[k0/32*step/4])
			a.steps = min(stretch, k-k0) / 32
			a.acc = min(k0, 1)
			kernel(a)
		}
	}

	if q.parts > 1 && q.ks.peak32(&st.sums[0], n*32) >= 0x7f800000 {
		q.multiplyRows(st, 0, n) // where infinities stay infinities
		return
	}

	q.storeColumns(st, 0, n)
}

// group sets the operands of group g of 32 rows for the columns from k0 on.
func (q *sparsePiece) group(st *stage, g, k0 int) *sparseTileArgs {
	a, w, row := &q.groups[g], q.expander.w, q.lo+32*g
	a.mask = address(w.Mask, row, k0/8)
	a.out = unsafe.Pointer(&st.sums[g*32*32])
	a.buffer = aligned(&st.f32)
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
