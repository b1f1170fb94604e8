package cpu

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// Bounds of what is packed at a time, in rows of the left and of the right operand, and of a piece of work in panels:
// the left panels of a piece stay in the second-level cache while one right panel stays in the first.
const (
	blockRows   = 2048
	blockCols   = 4096
	pieceRows   = 8
	pieceCols   = 8
	packAPanels = 4
	packBPanels = 4
)

// panelProduct is one product in progress: dst[m,n] = a·bᵀ with the operands seen as [m,k] and [n,k].
type panelProduct struct {
	ks   *kernelSet
	tile *tileKernel
	dst  kernels.Mat
	a, b operand
	k    int
	o    kernels.MatMul

	i0, mc, j0, nc, k0, kc int // the block at work
	aPanels, bPanels       int // panels in the block
	aSize, bSize           int // 32-bit units per panel
	aBuf, bBuf             []uint32
	aPeak, bPeak           atomic.Uint32 // largest magnitudes packed, as float32 bits

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
	tile := m.ks.choose(b.DType(), o.Precision)
	depth := evenBlock(k, tile.depth, 32)
	rows, cols := evenBlock(dst.Rows, blockRows, tile.rows), evenBlock(dst.Cols, blockCols, tile.cols)
	for p.j0 = 0; p.j0 < dst.Cols; p.j0 += cols {
		p.nc = min(cols, dst.Cols-p.j0)
		for p.k0 = 0; p.k0 < k; p.k0 += depth {
			p.kc = min(depth, k-p.k0)
			for p.i0 = 0; p.i0 < dst.Rows; p.i0 += rows {
				p.mc = min(rows, dst.Rows-p.i0)
				p.block(m.d, tile)
			}
		}
	}
	p.dst, p.a, p.b, p.o = kernels.Mat{}, operand{}, operand{}, kernels.MatMul{}
	panelProducts.Put(p)
}

// choose returns the fastest kernel for a right operand of type t.
func (s *kernelSet) choose(t kernels.DType, p kernels.Precision) *tileKernel {
	switch {
	case t == kernels.BF16 && p == kernels.Fast && s.fastBF16.run != nil:
		return &s.fastBF16
	case t == kernels.BF16 && s.exactBF16.run != nil:
		return &s.exactBF16
	case t != kernels.BF16 && s.split32.run != nil:
		return &s.split32
	}
	return &s.exact
}

// evenBlock cuts n into the fewest blocks of at most limit and returns their size, a multiple of unit that may exceed limit
// by less than unit.
func evenBlock(n, limit, unit int) int {
	blocks := (n + limit - 1) / limit
	return roundUp((n+blocks-1)/blocks, unit)
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// block packs and multiplies one block, and does so again with the exact kernel where magnitudes forbid a split.
func (p *panelProduct) block(d *Device, tile *tileKernel) {
	p.prepare(tile)
	d.parallel(p.packPieces(), p.pack)
	if tile.aParts > 1 && !(splittable(p.aPeak.Load()) && splittable(p.bPeak.Load())) {
		p.prepare(&p.ks.exact)
		d.parallel(p.packPieces(), p.pack)
	}
	d.parallel(pieces(p.aPanels, pieceRows)*pieces(p.bPanels, pieceCols), p.multiply)
}

func (p *panelProduct) packPieces() int {
	return pieces(p.bPanels, packBPanels) + pieces(p.aPanels, packAPanels)
}

// pieces is how many pieces of size per cover n.
func pieces(n, per int) int { return (n + per - 1) / per }

// prepare sizes the panels and their memory.
func (p *panelProduct) prepare(tile *tileKernel) {
	p.tile = tile
	p.aPanels, p.bPanels = pieces(p.mc, tile.rows), pieces(p.nc, tile.cols)
	p.aSize, p.bSize = tile.panelSize(tile.rows, p.kc, tile.aParts), tile.panelSize(tile.cols, p.kc, tile.bParts)
	p.aBuf, p.bBuf = grow(p.aBuf, p.aPanels*p.aSize), grow(p.bBuf, p.bPanels*p.bSize)
	p.aPeak.Store(0)
	p.bPeak.Store(0)
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
		return (kc + 1) / 2
	case panelTiles:
		return (kc + 31) / 32
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

// packPiece packs a few panels: first come those of b, then those of a.
func (p *panelProduct) packPiece(piece int) {
	st := stages.Get().(*stage)
	defer stages.Put(st)
	st.split.peak = 0
	right := pieces(p.bPanels, packBPanels)
	if piece < right {
		for q := piece * packBPanels; q < min(p.bPanels, (piece+1)*packBPanels); q++ {
			p.packB(st, p.bBuf[q*p.bSize:][:p.bSize], p.j0+q*p.tile.cols)
		}
		raise(&p.bPeak, st.split.peak)
		return
	}
	piece -= right
	for q := piece * packAPanels; q < min(p.aPanels, (piece+1)*packAPanels); q++ {
		p.packA(st, p.aBuf[q*p.aSize:][:p.aSize], p.i0+q*p.tile.rows)
	}
	raise(&p.aPeak, st.split.peak)
}

// raise sets peak to v if that is larger.
func raise(peak *atomic.Uint32, v uint32) {
	for old := peak.Load(); v > old && !peak.CompareAndSwap(old, v); old = peak.Load() {
	}
}

// multiplyPiece computes one rectangle of the block.
func (p *panelProduct) multiplyPiece(piece int) {
	st := stages.Get().(*stage)
	defer stages.Put(st)
	across := pieces(p.bPanels, pieceCols)
	lo, hi := piece/across*pieceRows, min(p.aPanels, (piece/across+1)*pieceRows)
	left, right := piece%across*pieceCols, min(p.bPanels, (piece%across+1)*pieceCols)
	if p.k0 == 0 && !p.o.Bias.IsZero() {
		p.startBias(lo, hi, left, right)
	}
	for q := left; q < right; q++ {
		p.multiplyColumn(st, lo, hi, q)
	}
}

// accumulates reports whether the block at work adds to dst.
func (p *panelProduct) accumulates() bool { return p.k0 > 0 || p.o.Accumulate || !p.o.Bias.IsZero() }

// multiplyColumn multiplies the left panels [lo, hi) with right panel q: whole tiles in place, the others through scratch.
func (p *panelProduct) multiplyColumn(st *stage, lo, hi, q int) {
	t, j := p.tile, q*p.tile.cols
	args := &st.tile
	*args = tileArgs{
		a: unsafe.Pointer(&p.aBuf[lo*p.aSize]), b: unsafe.Pointer(&p.bBuf[q*p.bSize]), k: t.depthUnits(p.kc), aStep: p.aSize * 4,
		ldc: p.dst.Stride * 4, panels: min(hi, p.mc/t.rows) - lo,
	}
	if p.accumulates() {
		args.acc = 1
	}
	if j+t.cols > p.nc {
		args.panels = 0
	}
	if args.panels > 0 {
		args.c = unsafe.Pointer(&p.dst.RowF32(p.i0 + lo*t.rows)[p.j0+j])
		t.run(args)
	}
	first := lo + max(args.panels, 0)
	args.c, args.ldc, args.panels, args.acc = unsafe.Pointer(&st.c), t.cols*4, 1, 0
	for r := first; r < hi; r++ {
		args.a = unsafe.Pointer(&p.aBuf[r*p.aSize])
		t.run(args)
		p.merge(st, r*t.rows, j)
	}
}

// merge stores the part of a scratch tile that lies inside dst.
func (p *panelProduct) merge(st *stage, i, j int) {
	t := p.tile
	rows, cols := min(t.rows, p.mc-i), min(t.cols, p.nc-j)
	for r := range rows {
		dst, src := p.dst.RowF32(p.i0 + i + r)[p.j0+j:][:cols], st.c[r*t.cols:][:cols]
		if !p.accumulates() {
			copy(dst, src)
			continue
		}
		for c, v := range src {
			dst[c] += v
		}
	}
}

// startBias writes or adds the bias to a rectangle of dst, before anything else is added there.
func (p *panelProduct) startBias(lo, hi, left, right int) {
	t := p.tile
	j, end := p.j0+left*t.cols, p.j0+min(p.nc, right*t.cols)
	for i := lo * t.rows; i < min(p.mc, hi*t.rows); i++ {
		row := p.dst.RowF32(p.i0 + i)[j:end]
		if p.o.Accumulate {
			addBias(row, p.o.Bias, j)
			continue
		}
		p.ks.widen(row, p.o.Bias, 0, j)
	}
}
