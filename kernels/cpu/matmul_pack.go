package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

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

// stage is the scratch memory of one piece of work, with the block of the inner size that it is at.
type stage struct {
	ks     *kernelSet
	tile   *tileKernel
	k0, kc int // first element of the block, and how many

	f32    [stageUnits]float32
	u16    [maxParts * stageRows * stagePitch]uint16
	c      [32 * 32]float32             // a tile of dst
	right  []uint32                     // packed right panels
	sums   [maxGroups * 32 * 32]float32 // of a direct product
	args   tileArgs
	pack   packArgs
	split  splitArgs
	dot    dotArgs
	axpy   axpyArgs
	direct directArgs
	out    [16]float32
}

var stages = sync.Pool{New: func() any { return new(stage) }}

// getStage takes a stage from the pool.
func getStage(ks *kernelSet, tile *tileKernel) *stage {
	st := stages.Get().(*stage)
	st.ks, st.tile, st.split.peak = ks, tile, 0
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
	case panelPairs:
		src, stride := st.stagedRows(o, r, t.rows)
		st.split.step, st.split.part, st.split.parts = 64, 0, 1
		for i := range t.rows {
			st.splitRow(unsafe.Pointer(&st.u16[i*stagePitch]), unsafe.Add(src, i*stride))
		}
		st.transpose(st.ks.packA, unsafe.Pointer(&dst[0]), unsafe.Pointer(&st.u16), stagePitch*2, t.rows*4, 16*t.rows*4)
	case panelTiles:
		for half := range 2 {
			src, stride := st.stagedRows(o, r+half*stageRows, stageRows)
			st.split.step, st.split.part, st.split.parts = t.aParts*2*tileBytes, 2*tileBytes, t.aParts
			for i := range stageRows {
				st.splitRow(unsafe.Pointer(&dst[(half*tileBytes+i*64)/4]), unsafe.Add(src, i*stride))
			}
		}
	}
}

// tileBytes is the size of an AMX tile.
const tileBytes = 1024

// packRight packs the panel of the right operand that starts at row r.
func (st *stage) packRight(dst []uint32, o operand, r int) {
	t := st.tile
	if t.layout == panelFloats {
		st.packFloats(dst, o, r, t.cols, st.ks.packB, st.ks.group)
		return
	}
	pitch, step, half := t.cols*4, 16*t.cols*4, 64
	if t.layout == panelTiles {
		pitch, step, half = 64, t.bParts*2*tileBytes, tileBytes
	}
	for h := range 2 {
		d := dst[h*half/4:]
		switch rows := r + h*stageRows; {
		case o.DType() != kernels.BF16:
			st.packParts(d, o, rows, pitch, step)
		case o.kMajor:
			st.packPairRows(d, o, rows, pitch, step)
		default:
			src, stride := st.pairedRows(o, rows)
			st.transpose(st.ks.packB, unsafe.Pointer(&d[0]), src, stride, pitch, step)
		}
	}
	if t.aParts > 1 && t.bParts == 1 {
		peak := st.ks.peak16((*uint16)(unsafe.Pointer(&dst[0])), len(dst)*2)
		st.split.peak = max(st.split.peak, uint32(peak)<<16)
	}
}

// packParts packs 16 rows of a right operand that is not bfloat16, as bfloat16 parts.
func (st *stage) packParts(dst []uint32, o operand, r, pitch, step int) {
	src, stride := st.stagedRows(o, r, stageRows)
	const part = stageRows * stagePitch
	st.split.step, st.split.part, st.split.parts = 64, part*2, st.tile.bParts
	for i := range stageRows {
		st.splitRow(unsafe.Pointer(&st.u16[i*stagePitch]), unsafe.Add(src, i*stride))
	}
	for q := range st.tile.bParts {
		st.transpose(st.ks.packB, unsafe.Pointer(&dst[q*2*tileBytes/4]), unsafe.Pointer(&st.u16[q*part]), stagePitch*2, pitch, step)
	}
}

// packFloats packs width rows as float32, group rows at a time.
func (st *stage) packFloats(dst []uint32, o operand, r, width int, transpose func(*packArgs), group int) {
	f := unsafe.Slice((*float32)(unsafe.Pointer(&dst[0])), len(dst))
	rows := min(width, o.rows()-r)
	switch {
	case o.kMajor:
		for q := range st.kc {
			row := f[q*width:][:width]
			st.ks.widen(row[:rows], o.Mat, st.k0+q, r)
			clear(row[rows:])
		}
	case transpose == nil:
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

// transpose turns 16 (or, left operand, exact.rows) rows of bfloat16 pairs into columns.
func (st *stage) transpose(f func(*packArgs), dst, src unsafe.Pointer, stride, pitch, step int) {
	st.pack = packArgs{dst, src, (st.kc + 31) / 32, step, pitch, stride}
	f(&st.pack)
}

// splitRow converts one staged row; the caller has set step, part and parts.
func (st *stage) splitRow(dst, src unsafe.Pointer) {
	st.split.dst, st.split.src, st.split.n = dst, src, (st.kc+31)/32
	st.ks.split(&st.split)
}

// directRows returns n stored rows from r as they lie in memory, if they are float32 and depth elements of each may be read,
// and nil otherwise.
func (st *stage) directRows(o operand, r, n, depth int) (src unsafe.Pointer, stride int) {
	if o.kMajor || o.DType() != kernels.F32 || r+n > o.Rows || o.Off+(r+n-1)*o.Stride+st.k0+depth > o.Buf.Len {
		return nil, 0
	}
	return o.at(r, st.k0), o.strideBytes()
}

// stagedRows returns n rows from r as float32, with zeros after the block's depth up to a multiple of 32, and zeros for rows
// after the operand's last.
func (st *stage) stagedRows(o operand, r, n int) (src unsafe.Pointer, stride int) {
	if st.kc%32 == 0 {
		if src, stride = st.directRows(o, r, n, st.kc); src != nil {
			return src, stride
		}
	}
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

// pairedRows returns 16 rows of bfloat16 from r, with zeros after the block's depth up to a multiple of 32 and for rows after
// the last.
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

// packPairRows packs 16 columns of a bfloat16 matrix stored as [k, rows].
func (st *stage) packPairRows(dst []uint32, o operand, r, pitch, step int) {
	rows := min(stageRows, max(0, o.Cols-r))
	zero := &st.u16[0]
	clear(st.u16[:stageRows])
	for q := 0; q < roundUp(st.kc, 32); q += 2 {
		lo, hi := zero, zero
		if q < st.kc && rows > 0 {
			lo = (*uint16)(o.at(st.k0+q, r))
		}
		if q+1 < st.kc && rows > 0 {
			hi = (*uint16)(o.at(st.k0+q+1, r))
		}
		st.ks.pairRows(&dst[(q/32*step+q%32/2*pitch)/4], lo, hi, rows)
	}
}
