package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// The product of many rows of x, rounded to bytes, and a quantised weight. x is rounded and packed once, in panels of
// 12 rows. A piece takes some columns of dst: for every block of up to byteDepth elements of the inner size it takes 16
// rows of the weight apart, packs them, and runs the tile over the panels of x. The weight's panel (8 KB) stays in the
// first-level cache, a block of x in the second-level cache.

const (
	byteTileRows = 12
	byteTileCols = 16
	byteDepth    = 512 // elements of a block, a multiple of every format's
	byteColumns  = 64  // of a piece, at most
	bytePanels   = 64  // panels of x of a piece, at most
)

// byteProduct is a product in progress.
type byteProduct struct {
	q      *quantOps
	dst, x kernels.Mat
	w      kernels.Quantised
	o      kernels.MatMul
	bias   []float32

	tile   func(*byteTileArgs)
	group  int  // elements of x and of the weight that share scales: 16, 32, or a whole block
	whole  bool // a row of x has one scale, and so has one of the weight
	affine bool

	panels, high int // of x; panels of a piece
	wide         int // columns of a piece
	pitch        int // elements of a row of a packed panel
	groups       int // of a row
	codes        []uint32
	offset       []int32 // three times, [panel][group][12]
	scale, sums  []float32

	pack, run func(piece int) // packPanel and runPiece, bound once
}

var byteProducts = sync.Pool{New: func() any {
	p := &byteProduct{}
	p.pack, p.run = p.packPanel, p.runPiece
	return p
}}

// canTile reports whether byte tiles apply.
func (q *quantOps) canTile(w kernels.Quantised) bool {
	return q.q.tile32 != nil && w.Cols%codeGroup == 0 && (!w.Format.Grouped() || even(w))
}

// byteTiles is matMul for many rows of x under Fast.
func (q *quantOps) byteTiles(dst, x kernels.Mat, w kernels.Quantised, o kernels.MatMul) {
	p := byteProducts.Get().(*byteProduct)
	p.q = q
	p.dst = dst
	p.x = x
	p.w = w
	p.o = o
	p.bias = p.bias[:0]
	if !o.Bias.IsZero() {
		p.bias = growFloats(p.bias, o.Bias.Cols)
		q.ks.widen(p.bias, o.Bias, 0, 0)
	}

	p.choose()
	p.panels = pieces(x.Rows, byteTileRows)
	p.high = evenBlock(p.panels, bytePanels, 1)
	p.wide = byteColumns
	for p.wide > byteTileCols && p.count() < 4*q.d.threads {
		p.wide /= 2
	}

	p.pitch = roundUp(w.Cols, 64)
	p.codes = grow(p.codes, p.panels*byteTileRows*p.pitch/4)
	n := p.panels * byteTileRows * p.groups
	p.offset = growInts(p.offset, n)
	p.scale = growFloats(p.scale, n)
	p.sums = growFloats(p.sums, n)

	q.d.parallel(p.panels, p.pack)
	q.d.parallel(p.count(), p.run)
	p.dst = kernels.Mat{}
	p.x = kernels.Mat{}
	p.w = kernels.Quantised{}
	p.o = kernels.MatMul{}
	byteProducts.Put(p)
}

// count is the number of pieces.
func (p *byteProduct) count() int { return pieces(p.w.Rows(), p.wide) * pieces(p.panels, p.high) }

// growInts returns s with n elements, their contents undefined.
func growInts(s []int32, n int) []int32 {
	if n <= cap(s) {
		return s[:n]
	}
	return make([]int32, n)
}

// choose picks the tile.
func (p *byteProduct) choose() {
	w := p.w
	p.affine = affine(w.Format) || !w.Zeros.IsZero()
	p.whole = w.Format == kernels.Int8 && w.Group >= w.Cols
	p.group = codeGroup
	p.tile = p.q.q.tile32
	switch {
	case p.affine:
		p.tile = p.q.q.tile32Add
	case w.Format == kernels.Q6_K:
		p.group = 16
		p.tile = p.q.q.tile16
	}

	if p.whole {
		p.group = byteDepth
	}
	p.groups = pieces(w.Cols, p.group)
}

// byteStage is the scratch memory of one piece of work.
type byteStage struct {
	rows     [byteTileCols * (byteDepth + 64)]int8 // of x, or of the weight, byteDepth + 64 apart
	sums     [byteTileRows][2 * byteDepth / codeGroup]int32
	scale    [byteTileRows][byteDepth / codeGroup]float32
	mul, add [byteTileCols * 2 * byteDepth / codeGroup]float32
	panel    [byteTileCols * byteDepth / 4]uint32 // of the weight
	mulPanel [byteTileCols * 2 * byteDepth / codeGroup]float32
	addPanel [byteTileCols * 2 * byteDepth / codeGroup]float32
	edge     []float32 // tiles that reach over the edge of dst

	round  roundArgs
	unpack unpackArgs
	pack   packArgs
	tile   byteTileArgs
}

// byteRowPitch is the distance of two rows of a stage.
const byteRowPitch = byteDepth + 64

var byteStages = sync.Pool{New: func() any { return new(byteStage) }}

// packPanel rounds 12 rows of x and packs them, a block at a time.
func (p *byteProduct) packPanel(panel int) {
	s := byteStages.Get().(*byteStage)
	rows := min(byteTileRows, p.x.Rows-panel*byteTileRows)
	var peaks [byteTileRows]uint32
	for i := 0; i < rows && p.w.Format == kernels.Int8; i++ {
		peaks[i] = p.q.q.top((*float32)(address(p.x, panel*byteTileRows+i, 0)), p.x.Cols)
	}

	for k := 0; k < p.x.Cols; k += byteDepth {
		n := min(byteDepth, p.x.Cols-k)
		for i := range byteTileRows {
			codes := s.rows[i*byteRowPitch:][:roundUp(n, 64)]
			if i >= rows {
				clear(codes)
				clear(s.sums[i][:])
				clear(s.scale[i][:])
				continue
			}

			s.round = roundArgs{
				src: address(p.x, panel*byteTileRows+i, k), codes: unsafe.Pointer(&codes[0]),
				sums: unsafe.Pointer(&s.sums[i]), scale: unsafe.Pointer(&s.scale[i]), blocks: n / codeGroup,
				peak: peaks[i],
			}
			p.q.q.roundMany(&s.round)
			clear(codes[n:])
		}

		s.pack = packArgs{
			dst: unsafe.Pointer(&p.codes[byteTileRows*(panel*p.pitch+k)/4]), src: unsafe.Pointer(&s.rows),
			n: pieces(n, 64), step: 16 * 4 * byteTileRows, pitch: 4 * byteTileRows, stride: byteRowPitch,
		}
		p.q.ks.packA(&s.pack)
		p.packScales(s, panel, k, n)
	}

	s.round, s.pack = roundArgs{}, packArgs{}
	byteStages.Put(s)
}

// packScales writes what goes with the codes of a block of n elements of a panel, from element k on.
func (p *byteProduct) packScales(s *byteStage, panel, k, n int) {
	first := (panel*p.groups + k/p.group) * byteTileRows
	for g := range pieces(n, p.group) {
		at := first + g*byteTileRows
		offset := p.offset[at:][:byteTileRows]
		scale := p.scale[at:][:byteTileRows]
		sums := p.sums[at:][:byteTileRows]
		for i := range byteTileRows {
			v := int32(0)
			for _, c := range s.sums[i][g*p.group/16 : min(n, (g+1)*p.group)/16] {
				v += c
			}
			offset[i] = -128 * v
			scale[i] = s.scale[i][g*p.group/codeGroup]
			sums[i] = scale[i] * float32(v)
		}
	}
}

// runPiece computes some columns of dst.
func (p *byteProduct) runPiece(piece int) {
	s := byteStages.Get().(*byteStage)
	across := pieces(p.w.Rows(), p.wide)
	lo := piece / across * p.high
	hi := min(p.panels, lo+p.high)
	first := piece % across * p.wide
	end := min(p.w.Rows(), first+p.wide)

	for k := 0; k < p.w.Cols; k += byteDepth {
		n := min(byteDepth, p.w.Cols-k)
		for j := first; j < end; j += byteTileCols {
			p.packWeight(s, j, k, n)
			p.multiply(s, lo, hi, j, k, n)
		}
	}

	for i := lo * byteTileRows; len(p.bias) > 0 && i < min(p.dst.Rows, hi*byteTileRows); i++ {
		row := p.dst.RowF32(i)[first:end]
		p.q.ks.add(row, row, p.bias[first:end], 1)
	}

	s.unpack = unpackArgs{}
	s.pack = packArgs{}
	s.tile = byteTileArgs{}
	byteStages.Put(s)
}

// packWeight takes n elements of 16 rows of the weight, from row j and column k on, apart, and packs them.
func (p *byteProduct) packWeight(s *byteStage, j, k, n int) {
	w := p.w
	rows := min(byteTileCols, w.Rows()-j)
	per := pieces(n, p.group)
	const pitch = 2 * byteDepth / codeGroup

	s.unpack = unpackArgs{
		dst: unsafe.Pointer(&s.rows), mul: unsafe.Pointer(&s.mul), add: unsafe.Pointer(&s.add), rows: rows,
		dstStride: byteRowPitch, scaleStride: pitch * 4, flip: 0x8080808080808080,
	}
	p.q.takeApart(&s.unpack, w, j, k, n)
	s.pack = packArgs{
		dst: unsafe.Pointer(&s.panel), src: unsafe.Pointer(&s.rows), n: pieces(n, 64), step: 16 * 4 * byteTileCols,
		pitch: 4 * byteTileCols, stride: byteRowPitch,
	}
	p.q.ks.packB(&s.pack)

	for i := 0; i < rows && w.Format.Grouped(); i++ {
		mul := s.mul[i*pitch:][:per]
		if p.whole {
			mul[0] = w.Scales.RowF32(j + i)[0]
		} else {
			groupScales(mul, w, j+i, k)
		}
		if w.Zeros.IsZero() {
			continue
		}

		add := s.add[i*pitch:][:per]
		if p.whole {
			add[0] = zeroOf(w, j+i, 0)
		} else {
			groupZeros(add, w, j+i, k)
		}
		for g := range add {
			add[g] *= -mul[g]
		}
	}

	for g := range per {
		mul := s.mulPanel[g*byteTileCols:][:byteTileCols]
		for i := range mul {
			mul[i] = s.mul[i*pitch+g]
		}
		if !p.affine {
			continue
		}
		add := s.addPanel[g*byteTileCols:][:byteTileCols]
		for i := range add {
			add[i] = s.add[i*pitch+g]
		}
	}
}

// multiply adds the products of panels [lo, hi) of x and the packed panel of the weight to columns j, j+1, … of dst.
func (p *byteProduct) multiply(s *byteStage, lo, hi, j, k, n int) {
	at := (lo*p.groups + k/p.group) * byteTileRows
	a := &s.tile
	*a = byteTileArgs{
		a:      unsafe.Pointer(&p.codes[byteTileRows*(lo*p.pitch+k)/4]),
		offset: uintptr(unsafe.Pointer(&p.offset[at])), scale: uintptr(unsafe.Pointer(&p.scale[at])),
		sums: uintptr(unsafe.Pointer(&p.sums[at])), b: unsafe.Pointer(&s.panel),
		mul: unsafe.Pointer(&s.mulPanel), add: unsafe.Pointer(&s.addPanel), groups: pieces(n, p.group),
		aStep: byteTileRows * p.pitch, xStep: byteTileRows * p.groups * 4, steps: 1,
	}
	if p.whole {
		a.steps = n / codeGroup
	}

	add := p.o.Accumulate || k > 0
	whole := 0
	if j+byteTileCols <= p.dst.Cols {
		whole = max(0, min(hi, p.dst.Rows/byteTileRows)-lo)
	}
	if whole > 0 {
		a.c = address(p.dst, lo*byteTileRows, j)
		a.ldc = p.dst.Stride * 4
		a.panels = whole
		if add {
			a.acc = 1
		}
		p.tile(a)
		lo += whole
	}
	if lo == hi {
		return
	}
	a.a = unsafe.Add(a.a, whole*a.aStep)

	s.edge = growFloats(s.edge, (hi-lo)*byteTileRows*byteTileCols)
	a.c = unsafe.Pointer(&s.edge[0])
	a.ldc = 4 * byteTileCols
	a.panels = hi - lo
	a.acc = 0
	p.tile(a)
	end := min(p.dst.Cols, j+byteTileCols)
	for i := lo * byteTileRows; i < min(p.dst.Rows, hi*byteTileRows); i++ {
		row, sum := p.dst.RowF32(i)[j:end], s.edge[(i-lo*byteTileRows)*byteTileCols:]
		for c := range row {
			if add {
				row[c] += sum[c]
			} else {
				row[c] = sum[c]
			}
		}
	}
}
