package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// directRows is the largest number of rows for which a bfloat16 weight is multiplied as it lies in memory, by tiles: beyond
// it, packed panels reuse more.
const directRows = 64

// directGroups is how many groups of 32 rows of w a piece multiplies.
const directGroups = 4

// directArgs are the operands of a direct kernel: out[j][i] = Σ_p w[j][p]·x[i][p] for groups·32 rows j of w, up to 32 rows i
// of packed x and steps of 32 p; a row of out has 32 floats. The assembly knows the offsets.
type directArgs struct {
	w, x, out     unsafe.Pointer
	wStride       int // bytes
	steps, groups int
	prefetch      int // bytes ahead in w
}

// directProduct is one product in progress of few rows and a bfloat16 weight [n,k], by AMX.
type directProduct struct {
	skinnyProduct     // the operands, and what tiles do not cover
	parts         int // of x
	panel         int // 32-bit units per packed panel of 32 rows of x
	packed        []uint32

	piece func(piece int) // multiplyPiece, bound once
}

var directProducts = sync.Pool{New: func() any {
	p := &directProduct{}
	p.piece = p.multiplyPiece
	return p
}}

// directTiles describe x as a right operand of one or three parts.
var directTiles = map[int]*tileKernel{
	1: {cols: 32, layout: panelTiles, aParts: 1, bParts: 1},
	3: {cols: 32, layout: panelTiles, aParts: 1, bParts: 3},
}

// canDirect reports whether directNT applies.
func (m *matmuls) canDirect(x, w kernels.Mat) bool {
	return m.ks.direct != nil && w.DType() == kernels.BF16 && w.Cols%32 == 0 && x.Rows > 1 && x.Rows <= directRows && w.Rows >= 32
}

// directNT is nt where canDirect holds. It reports false, with dst untouched, if magnitudes in x forbid a split.
func (m *matmuls) directNT(dst, x, w kernels.Mat, o kernels.MatMul) bool {
	p := directProducts.Get().(*directProduct)
	p.set(&m.ks, dst, x, w, o)
	p.parts = 3
	if o.Precision == kernels.Fast {
		p.parts = 1
	}
	ok := p.packX() || p.parts == 1
	if ok {
		m.d.parallel(pieces(w.Rows/32, directGroups), p.piece)
	}
	p.drop()
	directProducts.Put(p)
	return ok
}

// packX packs x in panels of 32 rows and reports whether its magnitudes allow a split.
func (p *directProduct) packX() bool {
	tile := directTiles[p.parts]
	st := getStage(p.ks, tile)
	defer stages.Put(st)
	p.panel = tile.panelSize(32, p.x.Cols, p.parts)
	p.packed = grow(p.packed, pieces(p.x.Rows, 32)*p.panel)
	for r := 0; r < p.x.Rows; r += 32 {
		dst := p.packed[r/32*p.panel:][:p.panel]
		for block := range pieces(p.x.Cols, stageDepth) {
			st.block(block, stageDepth, p.x.Cols)
			st.packRight(dst[tile.panelSize(32, st.k0, p.parts):], operand{Mat: p.x}, r)
		}
	}
	return splittable(st.split.peak)
}

// multiplyPiece computes directGroups·32 columns of dst; the last piece takes the columns after the last group too.
func (p *directProduct) multiplyPiece(piece int) {
	st := getStage(p.ks, nil)
	defer stages.Put(st)
	j := piece * directGroups * 32
	groups := min(directGroups, p.w.Rows/32-piece*directGroups)
	out := st.f32[:directGroups*32*32]
	for i := 0; i < p.x.Rows; i += 32 {
		rows := min(32, p.x.Rows-i)
		stride := p.w.Stride * 2
		st.direct = directArgs{
			w: address(p.w, j, 0), x: unsafe.Pointer(&p.packed[i/32*p.panel]), out: unsafe.Pointer(&out[0]), wStride: stride,
			steps: p.w.Cols / 32, groups: groups, prefetch: directPrefetch(stride),
		}
		p.ks.direct(p.parts, rows)(&st.direct)
		p.storeColumns(st, i, rows, j, groups*32)
	}
	if j+groups*32 == p.w.Rows/32*32 {
		p.dotBlock(st, 0, p.x.Rows, j+groups*32, p.w.Rows%32)
	}
}

// directPrefetch looks ahead to the next group of rows, or along long rows.
func directPrefetch(stride int) int {
	if stride > 8192 {
		return 1024
	}
	return 32 * stride
}

// storeColumns transposes out [n columns][32 rows] into dst. Sums that are not finite are computed again without parts, where
// infinities stay infinities.
func (p *directProduct) storeColumns(st *stage, i, rows, j, n int) {
	const size = directGroups * 32
	out, turned := st.f32[:size*32], st.f32[size*32:][:size*32]
	for h := 0; h < rows; h += 16 {
		for c := 0; c < n; c += 16 {
			st.pack = packArgs{unsafe.Pointer(&turned[h*size+c]), unsafe.Pointer(&out[c*32+h]), 1, 0, size * 4, 32 * 4}
			p.ks.packB(&st.pack)
		}
	}
	if p.parts > 1 {
		for r := range rows {
			if p.ks.peak32(&turned[r*size], n) >= 0x7f800000 {
				p.dotBlock(st, i, rows, j, n)
				return
			}
		}
	}
	for r := range rows {
		p.storeRow(p.dst.RowF32(i + r)[j:][:n], turned[r*size:][:n], j)
	}
}
