package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// Packing brings a block of an operand (some rows, up to tile.depth elements of k) into the order in which a
// micro-kernel reads it: panels of as many rows as the register tile has, element after element of k (see layout). On
// the way it widens BF16 and F16 to float32 or cuts float32 into bfloat16 parts, and fills rows and elements that are
// not there with zeros, so that kernels know whole tiles only.
//
// There is a way for each place where an operand can come from, chosen by what it saves:
//
//	[rows, k], float32   transposed from where it lies (directRows); copied first only at the edges, because
//	                     kernels read whole registers
//	[rows, k], BF16      pairs of neighbours in k are one 32-bit unit, so that the same transposition applies
//	[k, rows] (kMajor)   rows of k are in panel order already: floats are copied, left panels several at a time
//	                     (copyColumns), pairs of rows are interleaved (packPairs), and left tiles are turned panel by
//	                     panel (packLeftColumns)

// operand is one side of a product, seen as [rows, k]: the matrix itself, or its transpose if kMajor.
type operand struct {
	kernels.Mat
	kMajor bool
}

// rows is the size of the operand across k.
func (o operand) rows() int {
	if o.kMajor {
		return o.Cols
	}
	return o.Rows
}

// at is the address of element (i, j) of the stored matrix.
func (o operand) at(i, j int) unsafe.Pointer { return address(o.Mat, i, j) }

// strideBytes is the distance of two stored rows.
func (o operand) strideBytes() int { return o.Stride * o.DType().Size() }

func address(m kernels.Mat, i, j int) unsafe.Pointer {
	return unsafe.Pointer(&m.Buf.Bytes()[(m.Off+i*m.Stride+j)*m.DType().Size()])
}

// Sizes of a stage: rows that are brought into shape together, and the distance of two of them, which keeps them from
// competing for the same cache lines.
const (
	stageRows  = 16
	stageDepth = 512
	stagePitch = stageDepth + 32
	stageUnits = max(stageRows*stagePitch, maxGroups*32*32)
	maxParts   = 3
)

// growFloats returns s with n elements, their contents undefined.
func growFloats(s []float32, n int) []float32 {
	if n <= cap(s) {
		return s[:n]
	}
	units := grow(nil, n)
	return unsafe.Slice((*float32)(unsafe.Pointer(&units[0])), n)
}

// stage is the scratch memory of one piece of work, with the block of the inner size that it is at.
type stage struct {
	ks     *kernelSet
	tile   *tileKernel
	k0, kc int // first element of the block, and how many

	f32    [stageUnits]float32
	u16    [maxParts * stageRows * stagePitch]uint16
	c      [32 * 32]float32 // some elements of a row
	left   []uint32         // packed left panels
	right  []uint32         // a packed right panel
	spare  []uint32         // panels of the exact kernel
	peaks  []uint32         // largest magnitudes of the left panels, as float32 bits
	total  []float32        // sums of a piece, rows pitch apart
	pitch  int
	sums   [maxGroups * 32 * 32]float32 // of a direct product; a turned panel of stageDepth at most
	args   tileArgs
	pack   packArgs
	split  splitArgs
	pairs  pairArgs
	dot    dotArgs
	axpy   axpyArgs
	direct directArgs
	cols   columnArgs
	few    fewArgs
	lanes  laneArgs
	out    [4 * directRows]float32
}

var stages = sync.Pool{New: func() any { return new(stage) }}

// getStage takes a stage from the pool.
func getStage(ks *kernelSet, tile *tileKernel) *stage {
	st := stages.Get().(*stage)
	st.ks = ks
	st.tile = tile
	st.split.peak = 0
	return st
}

// block moves to a block of depth elements of an inner size of k.
func (st *stage) block(n, depth, k int) { st.k0, st.kc = n*depth, min(depth, k-n*depth) }

// widen copies elements j, j+1, … of row i of a weight to dst as float32.
func (s *kernelSet) widen(dst []float32, w kernels.Mat, i, j int) {
	if w.DType() == kernels.F32 {
		copy(dst, w.RowF32(i)[j:])
		return
	}

	src := w.RowU16(i)[j:][:len(dst)]
	kernel, scalar := s.widenBF16, kernels.FromBF16
	if w.DType() == kernels.F16 {
		kernel, scalar = s.widenF16, kernels.FromF16
	}

	whole := 0
	if kernel != nil {
		whole = len(dst) / s.lanes * s.lanes
	}
	if whole > 0 {
		kernel(&dst[0], &src[0], whole)
	}
	for c, v := range src[whole:] {
		dst[whole+c] = scalar(v)
	}
}

// packLeft packs the panel of the left operand that starts at row r.
func (st *stage) packLeft(dst []uint32, o operand, r int) {
	t := st.tile
	switch t.layout {
	case panelFloats:
		st.packFloats(dst, o, r, t.rows, st.ks.packA, t.rows)
	case panelPairs, panelQuads: // rounded to bfloat16 row by row: then a pair is 32 bits, and is turned like a float
		src, stride := st.stagedRows(o, r, t.rows)
		st.split.step = 64
		st.split.part = 0
		st.split.parts = 1
		for i := range t.rows {
			st.splitRow(unsafe.Pointer(&st.u16[i*stagePitch]), unsafe.Add(src, i*stride))
		}

		st.transpose(st.ks.packA, unsafe.Pointer(&dst[0]), unsafe.Pointer(&st.u16), stagePitch*2, t.rows*4, 16*t.rows*4)
		if t.layout == panelQuads {
			st.ks.quads(&dst[0], t.rows, pieces(st.kc, 4))
		}
	case panelTiles:
		for half := range 2 {
			src, stride := st.stagedRows(o, r+half*stageRows, stageRows)
			st.split.step = t.aParts * 2 * tileBytes
			st.split.part = 2 * tileBytes
			st.split.parts = t.aParts
			for i := range stageRows {
				st.splitRow(unsafe.Pointer(&dst[(half*tileBytes+i*64)/4]), unsafe.Add(src, i*stride))
			}
		}
	}
}

// tileBytes is the size of an AMX tile.
const tileBytes = 1024

// packRight packs the panel of the right operand that starts at row r.
func (st *stage) packRight(dst []uint32, s source, r int) {
	// The operand may hold a part of the matrix only (a sparse weight is expanded part by part), while r and the block
	// are counted in the whole of it.
	o, t, k0 := s.op, st.tile, st.k0
	r, st.k0 = r-s.row, k0-s.k0
	defer func() { st.k0 = k0 }()

	if t.layout == panelFloats {
		if !st.packHalves(dst, o, r) {
			st.packFloats(dst, o, r, t.cols, st.ks.packB, st.ks.group)
		}
		return
	}

	pitch := t.cols * 4
	step := 16 * t.cols * 4
	half := 64
	if t.layout == panelTiles {
		pitch = 64
		step = t.bParts * 2 * tileBytes
		half = tileBytes
	}

	st.pairs = pairArgs{step: step, pitch: pitch, half: half, part: 2 * tileBytes, peak: st.split.peak}
	switch {
	case o.kMajor:
		st.packPairs(dst, o, r)
		st.split.peak = st.pairs.peak
	case t.bParts == maxParts:
		st.packTurned(dst, o, r)
		st.split.peak = st.pairs.peak
	default:
		for h := range 2 {
			st.packHalf(dst[h*half/4:], o, r+h*stageRows, pitch, step)
		}
	}
	if t.layout == panelQuads {
		st.ks.quads(&dst[0], t.cols, pieces(st.kc, 4))
	}

	// A bfloat16 weight is one part as it is and needs no split, but an infinity in it would still make NaNs of the
	// left operand's parts (∞·x₁ where x₁ is 0), so its magnitudes count as well.
	if t.aParts > 1 && t.bParts == 1 {
		peak := st.ks.peak16((*uint16)(unsafe.Pointer(&dst[0])), len(dst)*2)
		st.split.peak = max(st.split.peak, uint32(peak)<<16)
	}
}

// packHalf packs 16 rows of a right operand as bfloat16, rounded if need be.
func (st *stage) packHalf(dst []uint32, o operand, r, pitch, step int) {
	if o.DType() == kernels.BF16 {
		src, stride := st.pairedRows(o, r)
		st.transpose(st.ks.packB, unsafe.Pointer(&dst[0]), src, stride, pitch, step)
		return
	}

	src, stride := st.stagedRows(o, r, stageRows)
	st.split.step = 64
	st.split.part = 0
	st.split.parts = 1
	for i := range stageRows {
		st.splitRow(unsafe.Pointer(&st.u16[i*stagePitch]), unsafe.Add(src, i*stride))
	}

	st.transpose(st.ks.packB, unsafe.Pointer(&dst[0]), unsafe.Pointer(&st.u16), stagePitch*2, pitch, step)
}

// packTurned packs 32 rows of a right operand that is not bfloat16, in three parts: turned as floats, because
// those are fewer bytes than the parts. The caller has set what st.pairs says of dst.
func (st *stage) packTurned(dst []uint32, o operand, r int) {
	for h := 0; h < squareSide; h += stageRows {
		src, stride := st.stagedRows(o, r+h, stageRows)
		st.pack = packArgs{
			unsafe.Pointer(&st.sums[h]), src, roundUp(st.kc, 32) / 16, 16 * squareSide * 4,
			squareSide * 4, stride,
		}
		st.ks.packB(&st.pack)
	}

	a := &st.pairs
	a.dst = unsafe.Pointer(&dst[0])
	a.src = unsafe.Pointer(&st.sums)
	a.n = pieces(st.kc, squareSide)
	a.stride = squareSide * 4
	st.ks.pairParts(a)
}

// packHalves packs the rows of a right panel of 16-bit floats, widened as they are turned. It reports whether there is
// a way, and all of what a kernel reads.
func (st *stage) packHalves(dst []uint32, o operand, r int) bool {
	turn := st.ks.packBF16
	if o.DType() == kernels.F16 {
		turn = st.ks.packF16
	}
	width := st.tile.cols
	if turn == nil || o.kMajor || o.DType() == kernels.F32 || st.kc%16 != 0 || r+width > o.Rows {
		return false
	}

	for g := 0; g < width; g += st.ks.group {
		st.pack = packArgs{
			unsafe.Pointer(&dst[g]), o.at(r+g, st.k0), st.kc / 16, 16 * width * 4, width * 4, o.strideBytes(),
		}
		turn(&st.pack)
	}
	return true
}

// packFloats packs width rows as float32, group rows at a time.
func (st *stage) packFloats(dst []uint32, o operand, r, width int, transpose func(*packArgs), group int) {
	f := unsafe.Slice((*float32)(unsafe.Pointer(&dst[0])), len(dst))
	rows := min(width, o.rows()-r)
	switch {
	case o.kMajor:
		for q := range st.kc {
			row := f[q*width:][:width] // the last panel is filled up, so that kernels need no edges
			st.ks.widen(row[:rows], o.Mat, st.k0+q, r)
			clear(row[rows:])
		}
	case transpose == nil:
		// As above: rows beyond the last count as zeros.
		clear(f)
		for i := range rows {
			st.ks.widen(st.f32[:st.kc], o.Mat, r+i, st.k0)
			for q, v := range st.f32[:st.kc] {
				f[q*width+i] = v
			}
		}
	default:
		for g := 0; g < width; g += group {
			src, stride := st.directRows(o, r+g, group, roundUp(st.kc, 16))
			if src == nil {
				src, stride = st.stagedRows(o, r+g, group)
			}
			st.pack = packArgs{unsafe.Pointer(&f[g]), src, (st.kc + 15) / 16, 16 * width * 4, width * 4, stride}
			transpose(&st.pack)
		}
	}
}

// columns are panels of columns of an operand that is stored as [k, rows]: the first column, the columns of a panel,
// the panels, and the distance of two of them when they are packed, in 32-bit units.
type columns struct{ first, width, panels, size int }

// packColumns packs n right panels, size units apart, from column r on. It reports whether there is a way for them.
func (st *stage) packColumns(s source, r, size, n int) bool {
	if !s.op.kMajor || st.tile.layout != panelFloats {
		return false
	}
	k0 := st.k0
	st.k0 -= s.k0
	defer func() { st.k0 = k0 }()
	return st.copyColumns(st.right, s.op, columns{r - s.row, st.tile.cols, n, size})
}

// copyColumns packs whole panels of columns as float32. It reports whether there is a way for their width. A row is
// read through all panels, as in packLeftColumns, and widened in the stage where it is of 16 bits.
func (st *stage) copyColumns(dst []uint32, o operand, c columns) bool {
	run := copyRows[floats6]
	switch c.width {
	case 6:
	case 12:
		run = copyRows[floats12]
	case 16:
		run = copyRows[floats16]
	case 32:
		run = copyRows[floats32]
	default:
		return false
	}

	_ = dst[(c.panels-1)*c.size+st.kc*c.width-1]
	if pack := st.ks.columns.of(o.DType()); pack != nil && c.width == st.ks.exact.cols {
		st.cols = columnArgs{
			unsafe.Pointer(&dst[0]), o.at(st.k0, c.first), st.kc, o.strideBytes(), c.panels, c.size * 4,
		}
		pack(&st.cols)
		return true
	}
	if o.DType() == kernels.F32 {
		run(columnArgs{unsafe.Pointer(&dst[0]), o.at(st.k0, c.first), st.kc, o.strideBytes(), c.panels, c.size * 4})
		return true
	}

	across := c.panels * c.width
	for q := 0; q < st.kc; q += stageRows {
		rows := min(stageRows, st.kc-q)
		for i := range rows {
			st.ks.widen(st.f32[i*across:][:across], o.Mat, st.k0+q+i, c.first)
		}
		run(columnArgs{
			unsafe.Pointer(&dst[q*c.width]), unsafe.Pointer(&st.f32), rows, across * 4, c.panels, c.size * 4,
		})
	}
	return true
}

// Stretches of floats, in arrays of one: those of several the compiler copies with a call each, because they might
// overlap.
type (
	floats6  [1][6]float32
	floats12 [1][12]float32
	floats16 [1][16]float32
	floats32 [1][32]float32
)

// columnArgs are n rows, stride bytes apart, each with a stretch for every panel, and panels size bytes apart, where
// the stretches go one after the other.
type columnArgs struct {
	dst, src  unsafe.Pointer
	n, stride int
	panels    int
	size      int
}

// copyRows copies stretches of a size that the compiler knows, which makes it quick.
func copyRows[A any](c columnArgs) {
	width := int(unsafe.Sizeof(*new(A)))
	for q := range c.n {
		for i := range c.panels {
			*(*A)(unsafe.Add(c.dst, i*c.size+q*width)) = *(*A)(unsafe.Add(c.src, q*c.stride+i*width))
		}
	}
}

// transpose turns 16 (or, left operand, exact.rows) rows of bfloat16 pairs into columns.
func (st *stage) transpose(f func(*packArgs), dst, src unsafe.Pointer, stride, pitch, step int) {
	st.pack = packArgs{dst, src, (st.kc + 31) / 32, step, pitch, stride}
	f(&st.pack)
}

// splitRow converts one staged row; the caller has set step, part and parts.
func (st *stage) splitRow(dst, src unsafe.Pointer) {
	st.split.dst = dst
	st.split.src = src
	st.split.n = (st.kc + 31) / 32
	st.ks.split(&st.split)
}

// directRows returns n stored rows from r as they lie in memory, if they are float32 and depth elements of each
// may be read, and nil otherwise.
func (st *stage) directRows(o operand, r, n, depth int) (src unsafe.Pointer, stride int) {
	if o.kMajor || o.DType() != kernels.F32 || r+n > o.Rows || o.Off+(r+n-1)*o.Stride+st.k0+depth > o.Buf.Len {
		return nil, 0
	}
	return o.at(r, st.k0), o.strideBytes()
}

// stagedRows returns n rows from r as float32, with zeros after the block's depth up to a multiple of 32, and
// zeros for rows after the operand's last.
func (st *stage) stagedRows(o operand, r, n int) (src unsafe.Pointer, stride int) {
	if st.kc%32 == 0 {
		if src, stride = st.directRows(o, r, n, st.kc); src != nil {
			return src, stride
		}
	}

	// Zeros add nothing to a product, so what is not there may be multiplied along.
	depth := roundUp(st.kc, 32)
	rows := min(n, max(0, o.rows()-r))
	if o.kMajor {
		st.gather(o, r, rows)
	} else {
		for i := range rows {
			st.ks.widen(st.f32[i*stagePitch:][:st.kc], o.Mat, r+i, st.k0)
		}
	}

	for i := range n {
		row := st.f32[i*stagePitch:][:depth]
		if i >= rows {
			clear(row)
		} else {
			clear(row[st.kc:])
		}
	}

	return unsafe.Pointer(&st.f32), stagePitch * 4
}

// gather brings rows of a transposed operand into the stage, in 16×16 squares where it can.
func (st *stage) gather(o operand, r, rows int) {
	whole := 0
	if rows == stageRows && o.DType() == kernels.F32 && st.ks.group == stageRows {
		whole = st.kc / 16 * 16
	}

	for q := 0; q < whole; q += 16 {
		st.pack = packArgs{unsafe.Pointer(&st.f32[q]), o.at(st.k0+q, r), 1, 0, stagePitch * 4, o.strideBytes()}
		st.ks.packB(&st.pack)
	}

	for q := whole; q < st.kc; q++ {
		for i := range rows {
			st.f32[i*stagePitch+q] = weightAt(o.Mat, st.k0+q, r+i)
		}
	}
}

// pairedRows returns 16 rows of bfloat16 from r, with zeros after the block's depth up to a multiple of 32 and
// for rows after the last.
func (st *stage) pairedRows(o operand, r int) (src unsafe.Pointer, stride int) {
	depth := roundUp(st.kc, 32)
	rows := min(stageRows, max(0, o.Rows-r))
	if rows == stageRows && depth == st.kc {
		src, stride = o.at(r, st.k0), o.strideBytes()
	} else {
		for i := range stageRows {
			row := st.u16[i*stagePitch:][:depth]
			clear(row)
			if i < rows {
				copy(row, o.RowU16(r + i)[st.k0:][:st.kc])
			}
		}

		src, stride = unsafe.Pointer(&st.u16), stagePitch*2
	}

	return src, stride
}

// squareSide is the number of rows and of columns of a block of a transposed operand that pairs are made of.
const squareSide = 32

// packPairs packs 32 columns of a matrix stored as [k, rows] in pairs of rows, which need no transposition; the
// caller has set what st.pairs says of dst.
func (st *stage) packPairs(dst []uint32, o operand, r int) {
	a, run := &st.pairs, st.ks.pairParts
	switch {
	case o.DType() == kernels.BF16:
		run = st.ks.pairRows
	case st.tile.bParts == 1:
		run = st.ks.pairRounded
	}

	whole := 0
	if o.DType() != kernels.F16 && r+squareSide <= o.Cols {
		whole = st.kc / squareSide
	}

	if whole > 0 {
		a.dst = unsafe.Pointer(&dst[0])
		a.src = o.at(st.k0, r)
		a.n = whole
		a.stride = o.strideBytes()
		run(a)
	}

	// Squares at the edges, and F16, which no kernel reads, go through the stage.
	for q := whole; q*squareSide < st.kc; q++ {
		a.dst, a.n = unsafe.Pointer(&dst[q*a.step/4]), 1
		a.src, a.stride = st.square(o, q*squareSide, r)
		run(a)
	}
}

// square copies the block of a matrix stored as [k, rows] that starts at element q of the block of the inner
// size and at column r, with zeros after the last of either: BF16 as it is, the others as float32.
func (st *stage) square(o operand, q, r int) (src unsafe.Pointer, stride int) {
	rows, cols := min(squareSide, st.kc-q), min(squareSide, o.Cols-r)
	if o.DType() == kernels.BF16 {
		to := st.u16[:squareSide*squareSide]
		clear(to)
		for i := range rows {
			copy(to[i*squareSide:], o.RowU16(st.k0 + q + i)[r:][:cols])
		}
		return unsafe.Pointer(&to[0]), squareSide * 2
	}

	to := st.f32[:squareSide*squareSide]
	clear(to)
	for i := range rows {
		st.ks.widen(to[i*squareSide:][:cols], o.Mat, st.k0+q+i, r)
	}

	return unsafe.Pointer(&to[0]), squareSide * 4
}

// packLeftColumns packs panels of 32 columns, size units apart in dst, of a left operand stored as [k, rows],
// as tiles, with the peak of each. Every row is read through all panels, because short stretches of long rows
// leave most of what the caches fetch unused.
func (st *stage) packLeftColumns(dst []uint32, size int, o operand, r int, peaks []uint32) {
	const panel = squareSide * squareSide // floats of a panel in the stage, [32 rows][32 p]
	parts, panels := st.tile.aParts, len(peaks)
	clear(peaks)

	for q := 0; q < st.kc; q += squareSide {
		for h := 0; h < squareSide; h += stageRows {
			src, stride := st.columns(o, q+h, r, panels*squareSide)
			st.pack = packArgs{
				unsafe.Pointer(&st.f32[h]), src, panels * squareSide / stageRows,
				stageRows * squareSide * 4, squareSide * 4, stride,
			}
			st.ks.packB(&st.pack)
		}

		st.split.n = squareSide
		st.split.step = 64
		st.split.part = 2 * tileBytes
		st.split.parts = parts

		for i := range panels {
			st.split.dst = unsafe.Pointer(&dst[i*size+q/squareSide*parts*2*tileBytes/4])
			st.split.src = unsafe.Pointer(&st.f32[i*panel])
			st.split.peak = peaks[i]
			st.ks.split(&st.split)
			peaks[i] = st.split.peak
		}
	}
}

// columns returns n columns from r of 16 rows of a matrix of floats stored as [k, rows], from element q of the
// block of the inner size: as they lie in memory if they are all there, else behind the panels in the stage,
// with zeros.
func (st *stage) columns(o operand, q, r, n int) (src unsafe.Pointer, stride int) {
	if q+stageRows <= st.kc && r+n <= o.Cols {
		return o.at(st.k0+q, r), o.strideBytes()
	}
	to := st.f32[packPanels*squareSide*squareSide:][:stageRows*n]
	clear(to)
	for i := range max(0, min(stageRows, st.kc-q)) {
		copy(to[i*n:][:n], o.RowF32(st.k0 + q + i)[r:])
	}
	return unsafe.Pointer(&to[0]), n * 4
}
