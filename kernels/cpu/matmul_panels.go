package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// The product of many rows: dst = a·bᵀ, a as [m,k] and b as [n,k], both possibly stored transposed.
//
// dst is cut into rectangles (pieces), which threads take one by one. A piece does
//
//	for every block of up to depth elements of k:
//	    pack the piece's rows of a for the block, in left panels of tile.rows rows
//	    for every right panel, tile.cols rows of b:
//	        pack it
//	        the micro-kernel: sums of [left panels × right panel] += left panels · right panel
//	add the bias, store the sums
//
// A right panel (tens of KB) stays in the first-level cache while all left panels run over it; the left block
// (pieceSpace) and the sums stay in the second-level cache. A piece packs for itself: reading the operands again is
// cheaper than writing packed ones beyond the second-level cache and reading those. The sums lie together in memory,
// because rows of dst that are a power of two apart compete for the same cache lines, and go to dst at the end. Kernels
// write to dst itself where one block covers k, or where their tiles have few enough rows and nothing is there to add
// the sums to.
//
// The bounds of pieces depend on the number of threads, the blocks of k do not: every sum is over the same blocks in
// the same order whatever piece its element is in.
//
// With kernels on bfloat16 parts, packing also collects the largest magnitude of every panel. Pairs of panels whose
// magnitudes three parts cannot carry (see splittable) are multiplied by the float32 kernel instead, block by block.

// Bounds of the pieces of a product.
const (
	pieceSide  = 512       // rows and columns of a piece, at most about
	directSide = 1024      // columns of a piece whose sums are dst itself, or of a kernel that is wide
	pieceSpace = 576 << 10 // bytes that a piece takes of a block of the packed left operand, at most about
	packPanels = 4         // panels that are packed together where they are columns
	leftPanels = 8         // the same of left panels of floats, which are narrower
	fewPieces  = 8         // pieces that other operations make at least
	sumsPad    = 16        // floats between two rows of a piece's sums
	fetchMost  = 4         // see fetchNext
)

// panelProduct is one product in progress. It comes from a pool: a model's step makes hundreds, and none should cost an
// allocation.
type panelProduct struct {
	ks     *kernelSet
	tile   *tileKernel
	dst    kernels.Mat
	a, b   operand
	k      int
	depth  int // of a block of the inner size
	o      kernels.MatMul
	panels int  // left panels
	rows   int  // left panels of a piece
	cols   int  // right panels of a piece
	aSize  int  // 32-bit units per left panel of a whole block
	direct bool // kernels write whole tiles to dst; see goesDirect

	multiply func(piece int) // multiplyPiece, bound once
}

var panelProducts = sync.Pool{New: func() any {
	p := &panelProduct{}
	p.multiply = p.multiplyPiece
	return p
}}

// panels computes a product piece by piece.
func (m *matmuls) panels(dst kernels.Mat, a, b operand, k int, o kernels.MatMul) {
	p := panelProducts.Get().(*panelProduct)
	p.ks = &m.ks
	p.dst = dst
	p.a = a
	p.b = b
	p.k = k
	p.o = o
	p.run(m.d)
	panelProducts.Put(p)
}

// run computes the product and forgets its operands.
func (p *panelProduct) run(d *Device) {
	t := p.b.DType()
	if p.a.kMajor && p.o.Precision == kernels.Fast {
		t = kernels.BF16 // both factors are rounded
	}

	p.prepare(p.ks.choose(p.dst.Rows, t, p.o.Precision), d.threads)
	d.parallel(p.count(), p.multiply)
	p.dst = kernels.Mat{}
	p.a = operand{}
	p.b = operand{}
	p.o = kernels.MatMul{}
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

// evenBlock cuts n into the fewest blocks of at most limit and returns their size, a multiple of unit that may
// exceed limit by less than unit.
func evenBlock(n, limit, unit int) int {
	blocks := pieces(n, limit)
	return roundUp(pieces(n, blocks), unit)
}

// pieces is how many pieces of size per cover n.
func pieces(n, per int) int { return (n + per - 1) / per }

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// prepare cuts the product into pieces for a kernel: a few per thread, as large as they may be.
func (p *panelProduct) prepare(tile *tileKernel, threads int) {
	p.tile = tile
	p.depth = evenBlock(p.k, tile.depth, 32)
	p.panels = pieces(p.dst.Rows, tile.rows)
	p.aSize = tile.panelSize(tile.rows, p.depth, tile.aParts)

	across := pieces(p.dst.Cols, tile.cols)
	p.direct = p.goesDirect()
	side := pieceSide
	if p.direct || tile.wide {
		side = directSide
	}

	p.rows = evenBlock(p.panels, max(1, min(pieceSide/tile.rows, pieceSpace/(4*p.aSize))), 1)
	p.cols = evenBlock(across, max(1, side/tile.cols), 1)

	// Two pieces to a thread, so that none waits long for the last one; the longer side is halved, because a piece
	// packs rows + columns for the rows · columns that it multiplies.
	for threads > 1 && p.count() < 2*threads && p.rows*p.cols > 1 {
		if p.rows*tile.rows >= p.cols*tile.cols && p.rows > 1 || p.cols == 1 {
			p.rows = pieces(p.rows, 2)
		} else {
			p.cols = pieces(p.cols, 2)
		}
	}
}

// goesDirect reports whether kernels are to write to dst itself: where they write every element once, or add up in dst
// what they would add up elsewhere, in the same order.
func (p *panelProduct) goesDirect() bool {
	once := p.k <= p.depth
	return (once || p.tile.flat && !p.o.Accumulate) && p.tile.aParts <= 1 && p.o.Bias.IsZero()
}

// count is the number of pieces.
func (p *panelProduct) count() int {
	return pieces(p.panels, p.rows) * pieces(p.dst.Cols, p.cols*p.tile.cols)
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
	case panelQuads:
		return pieces(kc, 4)
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

// splittable reports whether bfloat16 parts carry values up to the given magnitude, as float32 bits: not too near to
// overflow (rounding the first part up would make it infinite), infinite or NaN (the rest would be NaN), and with room
// below for the third part: kernels on bfloat16 take parts below 2^-126 for zero, which is next to nothing (2^-36)
// where the largest value is at least 2^-90.
func splittable(peak uint32) bool {
	const smallest, largest = (127 - 90) << 23, 0x7f000000
	return peak == 0 || peak >= smallest && peak < largest
}

// piece is a rectangle of dst: left panels [lo, hi), columns [j, end).
type piece struct{ lo, hi, j, end int }

// at returns piece n.
func (p *panelProduct) at(n int) piece {
	width := p.cols * p.tile.cols
	across := pieces(p.dst.Cols, width)
	lo, j := n/across*p.rows, n%across*width
	return piece{lo, min(p.panels, lo+p.rows), j, min(p.dst.Cols, j+width)}
}

// source is where the right operand of a piece's block lies: op, from row and element k0 of the inner size on.
type source struct {
	op      operand
	row, k0 int
}

// multiplyPiece computes one rectangle of the block.
func (p *panelProduct) multiplyPiece(n int) {
	st := getStage(p.ks, p.tile)
	defer stages.Put(st)
	c := p.at(n)
	p.openSums(st, c)
	for block := range pieces(p.k, p.depth) {
		st.block(block, p.depth, p.k)
		p.multiplyBlock(st, c, source{op: p.b})
	}
	p.storeSums(st, c)
}

// openSums makes room for the sums of a piece, in whole tiles.
func (p *panelProduct) openSums(st *stage, c piece) {
	st.pitch = roundUp(c.end-c.j, p.tile.cols) + sumsPad
	st.total = growFloats(st.total, (c.hi-c.lo)*p.tile.rows*st.pitch)
}

// multiplyBlock adds one block of the inner size to the sums of a piece, one right panel at a time.
func (p *panelProduct) multiplyBlock(st *stage, c piece, s source) {
	p.packLeft(st, c)

	size := p.tile.panelSize(p.tile.cols, st.kc, p.tile.bParts)
	st.right = grow(st.right, packPanels*size)
	for j := c.j; j < c.end; {
		for i := range p.packRight(st, c, s, j, size) {
			p.multiplyRight(st, c, s, j, st.right[i*size:])
			j += p.tile.cols
		}
	}
}

// multiplyRight multiplies the left panels of a piece with the packed right panel of column j.
func (p *panelProduct) multiplyRight(st *stage, c piece, s source, j int, right []uint32) {
	// One infinity must not send the whole product to the slower kernel: the choice is made for each pair of
	// panels.
	whole := p.tile.aParts <= 1 || splittable(st.split.peak)
	for lo := c.lo; lo < c.hi; {
		hi, exact := p.stretch(st, c, lo, whole)
		if exact {
			p.exactPanels(st, piece{lo, hi, j, c.end}, c, s)
		} else {
			p.multiplyPanels(st, c, piece{lo, hi, j, c.end}, s, right)
		}

		lo = hi
	}
}

// packRight packs right panels, size units each, from column j of a piece on for one block of the inner size: several
// where rows of k lie as they go into panels, else one, with its peak. It returns how many.
func (p *panelProduct) packRight(st *stage, c piece, s source, j, size int) int {
	if n := min(packPanels, (c.end-j)/p.tile.cols); n > 0 && st.packColumns(s, j, size, n) {
		return n
	}

	st.split.peak = 0
	st.packRight(st.right[:size], s, j)
	return 1
}

// packLeft packs the left panels of a piece for one block of the inner size, with the peak of each.
func (p *panelProduct) packLeft(st *stage, c piece) {
	st.left = grow(st.left, (c.hi-c.lo)*p.aSize)
	st.peaks = grow(st.peaks, c.hi-c.lo)
	if p.a.kMajor && p.tile.layout == panelTiles {
		for r := 0; r < c.hi-c.lo; r += packPanels {
			n := min(packPanels, c.hi-c.lo-r)
			st.packLeftColumns(st.left[r*p.aSize:], p.aSize, p.a, (c.lo+r)*p.tile.rows, st.peaks[r:][:n])
		}
		return
	}

	r := 0
	if p.a.kMajor && p.tile.layout == panelFloats {
		whole := min(c.hi, p.dst.Rows/p.tile.rows) - c.lo
		for r < whole {
			n := min(leftPanels, whole-r)
			if !st.copyColumns(st.left[r*p.aSize:], p.a, columns{(c.lo + r) * p.tile.rows, p.tile.rows, n, p.aSize}) {
				break
			}
			r += n
		}
	}

	for ; r < c.hi-c.lo; r++ {
		st.split.peak = 0
		st.packLeft(st.left[r*p.aSize:][:p.aSize], p.a, (c.lo+r)*p.tile.rows)
		st.peaks[r] = st.split.peak
	}
}

// stretch returns the end of the longest stretch of left panels from lo on that take the same kernel for the
// block, and whether that is the exact one, because they or the right panel cannot be cut into parts.
func (p *panelProduct) stretch(st *stage, c piece, lo int, whole bool) (hi int, exact bool) {
	if p.tile.aParts <= 1 {
		return c.hi, false
	}
	exact = !whole || !splittable(st.peaks[lo-c.lo])
	for hi = lo + 1; hi < c.hi && exact == (!whole || !splittable(st.peaks[hi-c.lo])); hi++ {
	}
	return hi, exact
}

// multiplyPanels multiplies the left panels of q, some of those of piece c, with the packed right panel of its column.
func (p *panelProduct) multiplyPanels(st *stage, c, q piece, s source, right []uint32) {
	lo, hi, j := q.lo, q.hi, q.j
	st.args = tileArgs{
		a: unsafe.Pointer(&st.left[(lo-c.lo)*p.aSize]), b: unsafe.Pointer(&right[0]), k: p.tile.depthUnits(st.kc),
		aStep: p.aSize * 4,
	}
	run := p.tile.run
	if p.tile.fetching != nil && p.fetchNext(st, c, s, j) {
		run = p.tile.fetching
	}

	if whole := p.inside(lo, hi, j); whole > 0 {
		st.args.c = address(p.dst, lo*p.tile.rows, j)
		st.args.ldc = p.dst.Stride * 4
		st.args.panels = whole
		st.args.acc = min(st.k0, 1)
		if p.o.Accumulate {
			st.args.acc = 1
		}

		run(&st.args)
		lo += whole
		st.args.a = unsafe.Add(st.args.a, whole*p.aSize*4)
	}

	// Tiles that reach over the edge of dst, and all of them where k has several blocks. The first block overwrites
	// what the piece before left in the sums.
	if lo < hi {
		st.args.c = st.sum(p, c, lo*p.tile.rows, j)
		st.args.ldc = st.pitch * 4
		st.args.panels = hi - lo
		st.args.acc = min(st.k0, 1)
		run(&st.args)
	}
}

// fetchNext says in the arguments of a kernel what is packed after the right panel of column j, and reports whether it
// is to be fetched: where so few left panels share it, for each byte of an element, that their products take little
// more time than the memory, and rows of it lie one after the other.
func (p *panelProduct) fetchNext(st *stage, c piece, s source, j int) bool {
	panels, size := c.hi-c.lo, s.op.DType().Size()
	if panels > fetchMost*size || s.op.kMajor {
		return false
	}

	j += p.tile.cols
	k := st.k0
	if j >= c.end { // the next block of k begins anew
		j, k = c.j, k+st.kc
	}
	j, k = j-s.row, k-s.k0 // see packRight
	if j >= s.op.Rows || k >= s.op.Cols {
		return false
	}
	st.args.fetch = uintptr(address(s.op.Mat, j, k))
	st.args.fetchRow = s.op.Stride * size
	st.args.fetchStep = pieces(16*size, panels)
	return true
}

// inside is how many of the left panels [lo, hi) give tiles with the right panel of column j that are written
// to dst itself.
func (p *panelProduct) inside(lo, hi, j int) int {
	if !p.direct || j+p.tile.cols > p.dst.Cols {
		return 0
	}
	return max(0, min(hi, p.dst.Rows/p.tile.rows)-lo)
}

// sum is the address of the sum of row i and column j in those of piece c.
func (st *stage) sum(p *panelProduct, c piece, i, j int) unsafe.Pointer {
	return unsafe.Pointer(&st.total[(i-c.lo*p.tile.rows)*st.pitch+j-c.j])
}

// exactPanels does with the exact kernel what multiplyPanels does, for the left panels and the column of q.
func (p *panelProduct) exactPanels(st *stage, q, c piece, s source) {
	t := &p.ks.exact
	st.tile = t
	defer func() { st.tile = p.tile }()

	size := t.panelSize(t.cols, st.kc, 0)
	st.spare = grow(st.spare, size+t.panelSize(t.rows, st.kc, 0))
	right, left := st.spare[:size], st.spare[size:]
	st.packRight(right, s, q.j)

	// The exact kernel's tiles are of another size than those of the panels in hand, so its panels are packed anew and
	// its tiles go through st.c into the piece's sums. This is rare, and need not be fast.
	end := min(p.dst.Rows, q.hi*p.tile.rows)
	for i := q.lo * p.tile.rows; i < end; i += t.rows {
		st.packLeft(left, p.a, i)
		st.args = tileArgs{
			a: unsafe.Pointer(&left[0]), b: unsafe.Pointer(&right[0]), c: unsafe.Pointer(&st.c), k: t.depthUnits(st.kc),
			ldc: t.cols * 4, panels: 1,
		}

		t.run(&st.args)

		for r := range min(t.rows, end-i) {
			sum, add := unsafe.Slice((*float32)(st.sum(p, c, i+r, q.j)), t.cols), st.c[r*t.cols:][:t.cols]
			if st.k0 == 0 {
				copy(sum, add)
			} else {
				p.ks.add(sum, sum, add, 1)
			}
		}
	}
}

// storeSums writes the sums of a piece to dst, or adds them to it.
func (p *panelProduct) storeSums(st *stage, c piece) {
	bias := st.f32[:0]
	if !p.o.Bias.IsZero() {
		bias = st.f32[:c.end-c.j]
		p.ks.widen(bias, p.o.Bias, 0, c.j)
	}

	first := c.lo * p.tile.rows
	for i := first; i < min(p.dst.Rows, c.hi*p.tile.rows); i++ {
		row, sum := p.dst.RowF32(i)[c.j:c.end], st.total[(i-first)*st.pitch:][:c.end-c.j]
		if p.direct && i < p.dst.Rows/p.tile.rows*p.tile.rows {
			// whole tiles are in dst already
			done := (c.end - c.j) / p.tile.cols * p.tile.cols
			row, sum = row[done:], sum[done:]
		}

		if len(bias) > 0 {
			p.ks.add(sum, sum, bias, 1)
		}

		if p.o.Accumulate {
			p.ks.add(row, row, sum, 1)
		} else {
			copy(row, sum)
		}
	}
}
