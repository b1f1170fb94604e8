package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// The product of many rows of x, rounded to bytes, and a quantised weight. x is rounded and packed once, in panels of
// 12 rows, or 6 without AVX-512; AMX takes 16, where there are enough. A piece takes some columns of dst: for every
// block of up to byteDepth elements of the inner size it takes 16 rows of the weight apart, packs them, and runs the
// tile over the panels of x. The weight's panel (8 KB, or 16 KB of wide codes) stays in the first-level cache, a block
// of x in the second-level cache.

const (
	byteTileRows = 16 // at most
	byteTileCols = 16
	byteDepth    = 512 // elements of a block, a multiple of every format's
	byteColumns  = 64  // of a piece, at most
	byteHigh     = 768 // rows of x of a piece, at most
)

// byteProduct is a product in progress.
type byteProduct struct {
	q      *quantOps
	dst, x kernels.Mat
	w      kernels.Quantised
	o      kernels.MatMul
	bias   []float32

	tiles  *byteTiles
	tile   byteTile
	tall   int  // rows of x of a tile
	size   int  // bytes of a packed code
	group  int  // elements of x and of the weight that share scales: 16, 32, or a whole block
	whole  bool // a row of x has one scale, and so has one of the weight
	affine bool

	panels, high int // of x; panels of a piece
	wide         int // columns of a piece
	pitch        int // elements of a row of a packed panel
	groups       int // of a row
	codes        []uint32
	offset       []int32 // three times, [panel][group][tall]
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
	return q.q.tiles.of != nil && w.Cols%codeGroup == 0 && (!w.Format.Grouped() || even(w))
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
	p.panels = pieces(x.Rows, p.tall)
	p.high = evenBlock(p.panels, byteHigh/p.tall, 1)
	p.wide = byteColumns
	for p.wide > byteTileCols && p.count() < 4*q.d.threads {
		p.wide /= 2
	}

	p.pitch = roundUp(w.Cols, 64)
	p.codes = grow(p.codes, p.panels*p.tall*p.pitch*p.size/4)
	n := p.panels * p.tall * p.groups
	p.offset = growInts(p.offset, n)
	p.scale = growFloats(p.scale, n)
	p.sums = growFloats(p.sums, n)

	q.d.parallel(p.panels, p.pack)
	q.d.parallel(p.count(), p.run)
	p.tiles = nil
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
	p.tiles = &p.q.q.tiles
	if p.q.q.tall.of != nil && p.x.Rows >= tallRows {
		p.tiles = &p.q.q.tall
	}
	p.tall = p.tiles.rows
	p.tile = p.tiles.of(w.Format, p.affine, p.whole)
	p.size = 1
	if p.tile.form == wideCodes {
		p.size = 2
	}

	p.group = codeGroup
	if w.Format == kernels.Q6_K {
		p.group = 16
	}
	if p.whole {
		p.group = byteDepth
	}
	p.groups = pieces(w.Cols, p.group)
}

// byteStage is the scratch memory of one piece of work.
type byteStage struct {
	rows     [byteTileCols * byteRowPitch]int8 // of x, or of the weight, byteRowPitch apart
	wide     [byteTileCols * byteRowPitch]int16
	sums     [byteTileRows][2 * byteDepth / codeGroup]int32
	scale    [byteTileRows][byteDepth / codeGroup]float32
	mul, add [byteTileCols * 2 * byteDepth / codeGroup]float32
	ints     [4 * byteTileRows * byteTileCols]int32 // of AMX's tiles
	panel    [byteTileCols * byteDepth / 2]uint32   // of the weight
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

// packPanel rounds the rows of a panel of x and packs them, a block at a time.
func (p *byteProduct) packPanel(panel int) {
	s := byteStages.Get().(*byteStage)
	rows := min(p.tall, p.x.Rows-panel*p.tall)
	var peaks [byteTileRows]uint32
	for i := 0; i < rows && p.w.Format == kernels.Int8; i++ {
		peaks[i] = p.q.q.top((*float32)(address(p.x, panel*p.tall+i, 0)), p.x.Cols)
	}

	for k := 0; k < p.x.Cols; k += byteDepth {
		n := min(byteDepth, p.x.Cols-k)
		for i := range p.tall {
			codes := s.rows[i*byteRowPitch:][:roundUp(n, 64)]
			if i >= rows {
				clear(codes)
				clear(s.sums[i][:])
				clear(s.scale[i][:])
				continue
			}

			s.round = roundArgs{
				src: address(p.x, panel*p.tall+i, k), codes: unsafe.Pointer(&codes[0]),
				sums: unsafe.Pointer(&s.sums[i]), scale: unsafe.Pointer(&s.scale[i]), blocks: n / codeGroup,
				peak: peaks[i],
			}
			p.q.q.roundMany(&s.round)
			clear(codes[n:])
		}

		at := unsafe.Pointer(&p.codes[p.tall*(panel*p.pitch+k)*p.size/4])
		if p.tile.form == signedCodes {
			p.layRows(s, at, n)
		} else {
			p.packRows(s, at, p.tiles.packX, p.tall, p.tall, n)
		}
		p.packScales(s, panel, k, n)
	}

	s.round, s.pack = roundArgs{}, packArgs{}
	byteStages.Put(s)
}

// packRows packs n codes of each of the first rows of a stage at dst; run takes together of them at a time.
func (p *byteProduct) packRows(s *byteStage, dst unsafe.Pointer, run func(*packArgs), rows, together, n int) {
	src := unsafe.Pointer(&s.rows)
	if p.tile.form == wideCodes {
		src = unsafe.Pointer(&s.wide)
		for i := range rows {
			p.tiles.widen(&s.wide[i*byteRowPitch], &s.rows[i*byteRowPitch], n)
		}
	}

	stride := byteRowPitch * p.size
	unit := p.tiles.unit
	for i := 0; i < rows; i += together {
		s.pack = packArgs{
			dst: unsafe.Add(dst, unit*i), src: unsafe.Add(src, i*stride), n: pieces(n*p.size, 64),
			step: 64 * rows, pitch: unit * rows, stride: stride,
		}
		run(&s.pack)
	}
}

// layRows lays n codes of each row of a panel out as tiles of AMX have them: steps after one another, rows in them.
func (p *byteProduct) layRows(s *byteStage, dst unsafe.Pointer, n int) {
	switch src := unsafe.Pointer(&s.rows); {
	case p.whole:
		laySteps[[64]int8](dst, src, pieces(n, 64), p.tall)
	case p.group == 16:
		laySteps[[16]int8](dst, src, n/16, p.tall)
	default:
		laySteps[[32]int8](dst, src, n/32, p.tall)
	}
}

// laySteps copies steps, as wide as their type, of the first rows of a stage.
func laySteps[T [16]int8 | [32]int8 | [64]int8](dst, src unsafe.Pointer, steps, rows int) {
	var step T
	size := int(unsafe.Sizeof(step))
	for i := range rows {
		from := unsafe.Add(src, i*byteRowPitch)
		to := unsafe.Add(dst, i*size)
		for k := range steps {
			*(*T)(unsafe.Add(to, k*rows*size)) = *(*T)(unsafe.Add(from, k*size))
		}
	}
}

// packScales writes what goes with the codes of a block of n elements of a panel, from element k on.
func (p *byteProduct) packScales(s *byteStage, panel, k, n int) {
	excess := p.excess()
	first := (panel*p.groups + k/p.group) * p.tall
	for g := range pieces(n, p.group) {
		at := first + g*p.tall
		offset := p.offset[at:][:p.tall]
		scale := p.scale[at:][:p.tall]
		sums := p.sums[at:][:p.tall]
		for i := range p.tall {
			v := int32(0)
			for _, c := range s.sums[i][g*p.group/16 : min(n, (g+1)*p.group)/16] {
				v += c
			}
			offset[i] = -excess * v
			scale[i] = s.scale[i][g*p.group/codeGroup]
			sums[i] = scale[i] * float32(v)
		}
	}
}

// excess is what the codes of the weight have too much in the form of the tile.
func (p *byteProduct) excess() int32 {
	switch {
	case p.tile.form == biasedCodes:
		return 128
	case p.tile.form == plainCodes && p.w.Zeros.IsZero():
		return offsetOf(p.w.Format)
	}
	return 0
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

	for i := lo * p.tall; len(p.bias) > 0 && i < min(p.dst.Rows, hi*p.tall); i++ {
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
		dstStride: byteRowPitch, scaleStride: pitch * 4, minus: minusOf(w),
	}
	switch p.tile.form {
	case biasedCodes:
		s.unpack.flip = 0x8080808080808080
	case plainCodes:
		s.unpack.minus = 0
	}
	p.q.takeApart(&s.unpack, w, j, k, n)
	p.packRows(s, unsafe.Pointer(&s.panel), p.tiles.packW, byteTileCols, p.tiles.group, n)

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
	at := (lo*p.groups + k/p.group) * p.tall
	a := &s.tile
	*a = byteTileArgs{
		a:      unsafe.Pointer(&p.codes[p.tall*(lo*p.pitch+k)*p.size/4]),
		offset: uintptr(unsafe.Pointer(&p.offset[at])), scale: uintptr(unsafe.Pointer(&p.scale[at])),
		sums: uintptr(unsafe.Pointer(&p.sums[at])), b: unsafe.Pointer(&s.panel),
		mul: unsafe.Pointer(&s.mulPanel), add: unsafe.Pointer(&s.addPanel), groups: pieces(n, p.group),
		aStep: p.tall * p.pitch * p.size, xStep: p.tall * p.groups * 4, steps: 1, ints: unsafe.Pointer(&s.ints),
	}
	if p.whole {
		a.steps = n / codeGroup
		if p.tile.form == signedCodes {
			a.steps = pieces(n, 64)
		}
	}

	add := p.o.Accumulate || k > 0
	whole := 0
	if j+byteTileCols <= p.dst.Cols {
		whole = max(0, min(hi, p.dst.Rows/p.tall)-lo)
	}
	if whole > 0 {
		a.c = address(p.dst, lo*p.tall, j)
		a.ldc = p.dst.Stride * 4
		a.panels = whole
		if add {
			a.acc = 1
		}
		p.tile.run(a)
		lo += whole
	}
	if lo == hi {
		return
	}
	a.a = unsafe.Add(a.a, whole*a.aStep)

	s.edge = growFloats(s.edge, (hi-lo)*p.tall*byteTileCols)
	a.c = unsafe.Pointer(&s.edge[0])
	a.ldc = 4 * byteTileCols
	a.panels = hi - lo
	a.acc = 0
	p.tile.run(a)
	end := min(p.dst.Cols, j+byteTileCols)
	for i := lo * p.tall; i < min(p.dst.Rows, hi*p.tall); i++ {
		row, sum := p.dst.RowF32(i)[j:end], s.edge[(i-lo*p.tall)*byteTileCols:]
		for c := range row {
			if add {
				row[c] += sum[c]
			} else {
				row[c] = sum[c]
			}
		}
	}
}
