package cpu

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// Bounds of the blocks of a product. The left operand is packed before the multiplication, as many rows at a time as
// packedUnits allows; then every piece packs its columns of the right operand, a block of its inner size at a time, and
// multiplies them with its rows. A piece's block of the right operand stays in the second-level cache.
const (
	packedUnits = 2 << 20   // 32-bit units of the packed left operand, about
	pieceRows   = 512       // rows of a piece, at most about
	pieceSpace  = 384 << 10 // bytes that a piece takes of a block of the packed left operand, at most about
	pieceCols   = 256       // columns of a piece, less where the product would make few pieces
	fewPieces   = 8
	packPanels  = 4 // left panels packed by one piece of work
)

// panelProduct is one product in progress: dst[m,n] = a·bᵀ with the operands seen as [m,k] and [n,k].
type panelProduct struct {
	ks    *kernelSet
	tile  *tileKernel
	dst   kernels.Mat
	a, b  operand
	k     int
	depth int // of a block of the inner size
	o     kernels.MatMul

	i0, mc     int // rows whose left operand is packed
	panels     int // left panels in these
	rows, cols int // left and right panels of a piece
	aSize      int // 32-bit units per left panel of a whole block
	left       []uint32
	peak       atomic.Uint32 // largest magnitude in left, as float32 bits

	pack, multiply func(piece int) // packPiece and multiplyPiece, bound once
}

var panelProducts = sync.Pool{New: func() any {
	p := &panelProduct{}
	p.pack, p.multiply = p.packPiece, p.multiplyPiece
	return p
}}

// panels computes a product block by block.
func (m *matmuls) panels(dst kernels.Mat, a, b operand, k int, o kernels.MatMul) {
	p := panelProducts.Get().(*panelProduct)
	p.ks, p.dst, p.a, p.b, p.k, p.o = &m.ks, dst, a, b, k, o
	tile := m.ks.choose(dst.Rows, b.DType(), o.Precision)
	limit := max(pieceRows, packedUnits/k)
	rows := evenBlock(dst.Rows, limit, tile.rows)
	for p.i0 = 0; p.i0 < dst.Rows; p.i0 += rows {
		p.mc = min(rows, dst.Rows-p.i0)
		p.rowBlock(m.d, tile)
	}
	p.dst, p.a, p.b, p.o = kernels.Mat{}, operand{}, operand{}, kernels.MatMul{}
	panelProducts.Put(p)
}

// choose returns the fastest kernel for m rows and a right operand of type t.
func (s *kernelSet) choose(m int, t kernels.DType, p kernels.Precision) *tileKernel {
	switch {
	case t == kernels.BF16 && p == kernels.Fast && s.fastBF16.run != nil:
		return &s.fastBF16
	case t == kernels.BF16 && s.exactBF16.run != nil:
		return &s.exactBF16
	case t != kernels.BF16 && s.split32.run != nil && m >= splitRows:
		return &s.split32
	}
	return &s.exact
}

// splitRows is the number of rows from which cutting a right operand into parts pays.
const splitRows = 96

// evenBlock cuts n into the fewest blocks of at most limit and returns their size, a multiple of unit that may exceed limit
// by less than unit.
func evenBlock(n, limit, unit int) int {
	blocks := pieces(n, limit)
	return roundUp(pieces(n, blocks), unit)
}

// pieces is how many pieces of size per cover n.
func pieces(n, per int) int { return (n + per - 1) / per }

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// rowBlock packs p.mc rows of the left operand and multiplies them, with the exact kernel where magnitudes forbid a split.
func (p *panelProduct) rowBlock(d *Device, tile *tileKernel) {
	p.prepare(tile)
	d.parallel(pieces(p.panels, packPanels), p.pack)
	if tile.aParts > 1 && !splittable(p.peak.Load()) {
		p.prepare(&p.ks.exact)
		d.parallel(pieces(p.panels, packPanels), p.pack)
	}
	d.parallel(pieces(p.panels, p.rows)*pieces(p.dst.Cols, p.cols*p.tile.cols), p.multiply)
}

// prepare sizes the blocks for a kernel.
func (p *panelProduct) prepare(tile *tileKernel) {
	p.tile = tile
	p.depth = evenBlock(p.k, tile.depth, 32)
	p.panels = pieces(p.mc, tile.rows)
	p.aSize = tile.panelSize(tile.rows, p.depth, tile.aParts)
	p.left = grow(p.left, pieces(p.k, p.depth)*p.panels*p.aSize)
	p.peak.Store(0)
	p.rows = evenBlock(p.panels, max(1, min(pieceRows/tile.rows, pieceSpace/(4*p.aSize))), 1)
	p.cols = pieceCols / tile.cols
	for p.cols > 1 && pieces(p.panels, p.rows)*pieces(p.dst.Cols, p.cols*tile.cols) < fewPieces {
		p.cols /= 2
	}
}

// panelSize is the size of a panel of width rows in 32-bit units.
func (t *tileKernel) panelSize(width, kc, parts int) int {
	if t.layout == panelFloats {
		return roundUp(kc, 16) * width
	}
	return roundUp(kc, 32) / 2 * width * parts
}

// depthUnits is the k that the micro-kernel is given.
func (t *tileKernel) depthUnits(kc int) int {
	switch t.layout {
	case panelPairs:
		return pieces(kc, 2)
	case panelTiles:
		return pieces(kc, 32)
	}
	return kc
}

// grow returns a slice of n units that starts at a cache line, s itself if it is long enough.
func grow(s []uint32, n int) []uint32 {
	if n <= cap(s) {
		return s[:n]
	}
	raw := make([]uint32, n+16)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw)))&63) / 4
	return raw[off : off+n : off+n]
}

// splittable reports whether bfloat16 parts carry values up to the given magnitude: not too near to overflow, infinite or
// NaN, and with room below for the third part.
func splittable(peak uint32) bool {
	const smallest, largest = (127 - 90) << 23, 0x7f000000
	return peak == 0 || peak >= smallest && peak < largest
}

// packPiece packs a few left panels over the whole inner size.
func (p *panelProduct) packPiece(piece int) {
	st := getStage(p.ks, p.tile)
	defer stages.Put(st)
	for block := range pieces(p.k, p.depth) {
		st.block(block, p.depth, p.k)
		first, end := piece*packPanels, min(p.panels, (piece+1)*packPanels)
		if p.a.kMajor && p.tile.layout == panelTiles {
			st.packLeftColumns(p.leftPanels(block, first), p.aSize, p.a, p.i0+first*p.tile.rows, end-first)
			continue
		}
		for r := first; r < end; r++ {
			st.packLeft(p.leftPanels(block, r)[:p.aSize], p.a, p.i0+r*p.tile.rows)
		}
	}
	raise(&p.peak, st.split.peak)
}

// leftPanels is the packed left operand of a block of the inner size, from panel r.
func (p *panelProduct) leftPanels(block, r int) []uint32 {
	return p.left[(block*p.panels+r)*p.aSize:]
}

// raise sets peak to v if that is larger.
func raise(peak *atomic.Uint32, v uint32) {
	for old := peak.Load(); v > old && !peak.CompareAndSwap(old, v); old = peak.Load() {
	}
}

// piece is a rectangle of dst: left panels [lo, hi), columns [j, end).
type piece struct{ lo, hi, j, end int }

// multiplyPiece computes one rectangle of the block.
func (p *panelProduct) multiplyPiece(n int) {
	st := getStage(p.ks, p.tile)
	defer stages.Put(st)
	width := p.cols * p.tile.cols
	across := pieces(p.dst.Cols, width)
	lo, j := n/across*p.rows, n%across*width
	c := piece{lo, min(p.panels, lo+p.rows), j, min(p.dst.Cols, j+width)}
	if !p.o.Bias.IsZero() {
		p.startBias(c)
	}
	for block := range pieces(p.k, p.depth) {
		st.block(block, p.depth, p.k)
		p.multiplyBlock(st, c, block)
	}
}

// multiplyBlock adds one block of the inner size to a piece.
func (p *panelProduct) multiplyBlock(st *stage, c piece, block int) {
	t := p.tile
	size := t.panelSize(t.cols, st.kc, t.bParts)
	st.right = grow(st.right, pieces(c.end-c.j, t.cols)*size)
	st.split.peak = 0
	for j := c.j; j < c.end; j += t.cols {
		st.packRight(st.right[(j-c.j)/t.cols*size:][:size], p.b, j)
	}
	if t.aParts > 1 && !splittable(st.split.peak) {
		p.exactBlock(st, c)
		return
	}
	for j := c.j; j < c.end; j += t.cols {
		p.multiplyPanel(st, c, j, p.leftPanels(block, c.lo), st.right[(j-c.j)/t.cols*size:])
	}
}

// adds reports whether the block of the inner size that st works on adds to dst.
func (p *panelProduct) adds(st *stage) bool { return st.k0 > 0 || p.o.Accumulate || !p.o.Bias.IsZero() }

// multiplyPanel multiplies the left panels of a piece with the right panel of column j: whole tiles in place, the others
// through scratch.
func (p *panelProduct) multiplyPanel(st *stage, c piece, j int, left, right []uint32) {
	t := p.tile
	step := t.panelSize(t.rows, p.depth, t.aParts)
	whole := min(c.hi, p.mc/t.rows) - c.lo
	if j+t.cols > c.end {
		whole = 0
	}
	if whole > 0 {
		st.args = tileArgs{
			a: unsafe.Pointer(&left[0]), b: unsafe.Pointer(&right[0]), c: address(p.dst, p.i0+c.lo*t.rows, j), k: t.depthUnits(st.kc),
			ldc: p.dst.Stride * 4, panels: whole, aStep: step * 4,
		}
		if p.adds(st) {
			st.args.acc = 1
		}
		t.run(&st.args)
	}
	for r := c.lo + whole; r < c.hi; r++ {
		p.multiplyEdge(st, left[(r-c.lo)*step:], right, c, r*t.rows, j)
	}
}

// multiplyEdge multiplies one left and one right panel into scratch and stores what lies inside the piece.
func (p *panelProduct) multiplyEdge(st *stage, left, right []uint32, c piece, i, j int) {
	t := st.tile
	st.args = tileArgs{
		a: unsafe.Pointer(&left[0]), b: unsafe.Pointer(&right[0]), c: unsafe.Pointer(&st.c), k: t.depthUnits(st.kc), ldc: t.cols * 4, panels: 1,
	}
	t.run(&st.args)
	rows, cols := min(t.rows, p.mc-i, c.hi*p.tile.rows-i), min(t.cols, c.end-j)
	for r := range rows {
		dst, src := p.dst.RowF32(p.i0 + i + r)[j:][:cols], st.c[r*t.cols:][:cols]
		if !p.adds(st) {
			copy(dst, src)
			continue
		}
		for q, v := range src {
			dst[q] += v
		}
	}
}

// exactBlock does what multiplyBlock does, with the exact kernel, for a right operand that cannot be cut into parts.
func (p *panelProduct) exactBlock(st *stage, c piece) {
	t := &p.ks.exact
	st.tile = t
	defer func() { st.tile = p.tile }()
	size := t.panelSize(t.cols, st.kc, 0)
	st.right = grow(st.right, size+t.panelSize(t.rows, st.kc, 0))
	right, left := st.right[:size], st.right[size:]
	for j := c.j; j < c.end; j += t.cols {
		st.packRight(right, p.b, j)
		for i := c.lo * p.tile.rows; i < min(p.mc, c.hi*p.tile.rows); i += t.rows {
			st.packLeft(left, p.a, p.i0+i)
			p.multiplyEdge(st, left, right, c, i, j)
		}
	}
}

// startBias writes or adds the bias to a piece of dst, before anything else is added there.
func (p *panelProduct) startBias(c piece) {
	for i := c.lo * p.tile.rows; i < min(p.mc, c.hi*p.tile.rows); i++ {
		row := p.dst.RowF32(p.i0 + i)[c.j:c.end]
		if p.o.Accumulate {
			addBias(row, p.o.Bias, c.j)
			continue
		}
		p.ks.widen(row, p.o.Bias, 0, c.j)
	}
}
