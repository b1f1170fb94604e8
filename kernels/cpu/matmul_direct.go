package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// The product of 2 to 32 rows with a BF16 weight, by AMX: dstᵀ = w·xᵀ. A tile of the left operand is 16 rows by 32
// bfloat16, which is how a row-major w lies in memory already, so that tiles of w are loaded from where it is, once,
// and nothing of it is packed; the few rows of x are the right operand, packed once for the whole product. What comes
// out is dst transposed, [columns][32 rows], and is turned when it is stored.
//
// Exact products cut x into three bfloat16 parts; w is one part as it is. Where x can't be cut, nt takes another way;
// an infinity in w shows in the sums, which are then computed again by the dot kernels (storeColumns): w is read once
// and isn't looked through beforehand.

// directRows is the largest number of rows for which a bfloat16 weight is multiplied as it lies in memory, by
// tiles: beyond it, packed panels reuse more.
const directRows = 32

// A piece multiplies some groups of 32 rows of w, maxGroups at most. Packed x beyond directSpace bytes is taken
// in stretches of that size, which stay in the second-level cache while all groups of a piece use them; the
// more groups, the less often x comes from further away.
const (
	fewGroups   = 4
	maxGroups   = 16
	directSpace = 192 << 10
)

// directArgs are the operands of a direct kernel: out[j][i] (+)= Σ_p w[j][p]·x[i][p] for groups·32 rows j of w,
// up to 32 rows i of packed x and steps of 32 p; a row of out has 32 floats. The assembly knows the offsets.
type directArgs struct {
	w, x, out     unsafe.Pointer
	wStride       int // bytes
	steps, groups int
	prefetch      int // bytes ahead in w
	acc           int // 0 overwrites out, 1 adds to it
}

// directProduct is one product in progress of few rows and a bfloat16 weight [n,k], by AMX.
type directProduct struct {
	skinnyProduct     // the operands, and what tiles do not cover
	parts         int // of x
	packed        []uint32
	groups        int // per piece

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
	return m.ks.direct != nil && w.DType() == kernels.BF16 && w.Cols%32 == 0 && x.Rows > 1 && x.Rows <= directRows &&
		w.Rows >= 32
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
		m.d.parallel(pieces(w.Rows/32, p.groups), p.piece)
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

	p.packed = grow(p.packed, tile.panelSize(32, p.x.Cols, p.parts))
	p.groups = fewGroups
	if len(p.packed)*4 > directSpace {
		p.groups = min(maxGroups, max(fewGroups, p.w.Rows/32/fewPieces))
	}

	for block := range pieces(p.x.Cols, stageDepth) {
		st.block(block, stageDepth, p.x.Cols)
		st.packRight(p.packed[tile.panelSize(32, st.k0, p.parts):], source{op: operand{Mat: p.x}}, 0)
	}

	return splittable(st.split.peak)
}

// multiplyPiece computes p.groups·32 columns of dst; the last piece takes the columns after the last group too.
func (p *directProduct) multiplyPiece(piece int) {
	st := getStage(p.ks, nil)
	defer stages.Put(st)
	j := piece * p.groups * 32
	groups := min(p.groups, p.w.Rows/32-piece*p.groups)
	p.multiplyGroups(st, j, groups)
	p.storeColumns(st, j, groups*32)
	if j+groups*32 == p.w.Rows/32*32 {
		p.dotBlock(st, 0, p.x.Rows, j+groups*32, p.w.Rows%32)
	}
}

// multiplyGroups computes groups·32 columns of dst from column j, into st.sums as [columns][32].
func (p *directProduct) multiplyGroups(st *stage, j, groups int) {
	run := p.ks.direct(p.parts, p.x.Rows)
	step := p.parts * 2 * tileBytes
	stretch := directSpace / (step * roundUp(p.x.Rows, 16) / 32)

	a, steps := &st.direct, p.w.Cols/32
	*a = directArgs{
		out: unsafe.Pointer(&st.sums), wStride: p.w.Stride * 2, groups: groups,
		prefetch: 32 * p.w.Stride * 2,
	}

	for s := 0; s < steps; s += stretch {
		a.w, a.x = address(p.w, j, s*32), unsafe.Pointer(&p.packed[s*step/4])
		a.steps = min(stretch, steps-s)
		run(a)
		a.acc = 1
	}
}

// storeColumns transposes out [n columns][32 rows] into dst. Sums that are not finite are computed again
// without parts, where infinities stay infinities.
func (p *directProduct) storeColumns(st *stage, j, n int) {
	// out is dst transposed: it is turned 16×16 at a time into the stage, and goes to dst from there, row by row.
	rows := p.x.Rows
	const size = maxGroups * 32
	out, turned := st.sums[:size*32], st.f32[:size*32]

	for h := 0; h < rows; h += 16 {
		for c := 0; c < n; c += 16 {
			st.pack = packArgs{unsafe.Pointer(&turned[h*size+c]), unsafe.Pointer(&out[c*32+h]), 1, 0, size * 4, 32 * 4}
			p.ks.packB(&st.pack)
		}
	}

	if p.parts > 1 {
		for r := range rows {
			if p.ks.peak32(&turned[r*size], n) >= 0x7f800000 {
				p.dotBlock(st, 0, rows, j, n)
				return
			}
		}
	}

	for r := range rows {
		p.storeRow(p.dst.RowF32(r)[j:][:n], turned[r*size:][:n], j)
	}
}
