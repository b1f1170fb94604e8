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
	maxParts   = 3
)

// stage is the scratch memory of one piece of work.
type stage struct {
	f32    [stageRows * stagePitch]float32
	u16    [maxParts * stageRows * stagePitch]uint16
	c      [32 * 32]float32 // a tile of dst
	tile   tileArgs
	pack   packArgs
	split  splitArgs
	dot    dotArgs
	axpy   axpyArgs
	direct directArgs
	out    [16]float32
}

var stages = sync.Pool{New: func() any { return new(stage) }}

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

// packA packs the panel of the left operand that starts at row r.
func (p *panelProduct) packA(st *stage, dst []uint32, r int) {
	t := p.tile
	switch t.layout {
	case panelFloats:
		p.packFloats(st, dst, p.a, r, t.rows, p.ks.packA, t.rows)
	case panelPairs:
		src, stride := p.stagedRows(st, p.a, r, t.rows)
		st.split.step, st.split.part, st.split.parts = 64, 0, 1
		for i := range t.rows {
			p.splitRow(st, unsafe.Pointer(&st.u16[i*stagePitch]), unsafe.Add(src, i*stride))
		}
		p.transpose(st, p.ks.packA, unsafe.Pointer(&dst[0]), unsafe.Pointer(&st.u16), stagePitch*2, t.rows*4, 16*t.rows*4)
	case panelTiles:
		for half := range 2 {
			src, stride := p.stagedRows(st, p.a, r+half*stageRows, stageRows)
			st.split.step, st.split.part, st.split.parts = t.aParts*2*tileBytes, 2*tileBytes, t.aParts
			for i := range stageRows {
				p.splitRow(st, unsafe.Pointer(&dst[(half*tileBytes+i*64)/4]), unsafe.Add(src, i*stride))
			}
		}
	}
}

// tileBytes is the size of an AMX tile.
const tileBytes = 1024

// packB packs the panel of the right operand that starts at row r.
func (p *panelProduct) packB(st *stage, dst []uint32, r int) {
	t := p.tile
	if t.layout == panelFloats {
		p.packFloats(st, dst, p.b, r, t.cols, p.ks.packB, p.ks.group)
		return
	}
	pitch, step, half := t.cols*4, 16*t.cols*4, 64
	if t.layout == panelTiles {
		pitch, step, half = 64, t.bParts*2*tileBytes, tileBytes
	}
	for h := range 2 {
		d := dst[h*half/4:]
		switch rows := r + h*stageRows; {
		case p.b.DType() != kernels.BF16:
			p.packParts(st, d, rows, pitch, step)
		case p.b.kMajor:
			p.packPairRows(st, d, rows, pitch, step)
		default:
			src, stride := p.pairedRows(st, p.b, rows)
			p.transpose(st, p.ks.packB, unsafe.Pointer(&d[0]), src, stride, pitch, step)
		}
	}
	if t.aParts > 1 && t.bParts == 1 {
		peak := p.ks.peak16((*uint16)(unsafe.Pointer(&dst[0])), len(dst)*2)
		st.split.peak = max(st.split.peak, uint32(peak)<<16)
	}
}

// packParts packs 16 rows of a right operand that is not bfloat16, as bfloat16 parts.
func (p *panelProduct) packParts(st *stage, dst []uint32, r, pitch, step int) {
	src, stride := p.stagedRows(st, p.b, r, stageRows)
	const part = stageRows * stagePitch
	st.split.step, st.split.part, st.split.parts = 64, part*2, p.tile.bParts
	for i := range stageRows {
		p.splitRow(st, unsafe.Pointer(&st.u16[i*stagePitch]), unsafe.Add(src, i*stride))
	}
	for q := range p.tile.bParts {
		p.transpose(st, p.ks.packB, unsafe.Pointer(&dst[q*2*tileBytes/4]), unsafe.Pointer(&st.u16[q*part]), stagePitch*2, pitch, step)
	}
}

// packFloats packs width rows as float32, group rows at a time.
func (p *panelProduct) packFloats(st *stage, dst []uint32, o operand, r, width int, transpose func(*packArgs), group int) {
	f := unsafe.Slice((*float32)(unsafe.Pointer(&dst[0])), len(dst))
	rows := min(width, o.rows()-r)
	switch {
	case o.kMajor:
		for q := range p.kc {
			row := f[q*width:][:width]
			p.ks.widen(row[:rows], o.Mat, p.k0+q, r)
			clear(row[rows:])
		}
	case transpose == nil:
		clear(f)
		for i := range rows {
			p.ks.widen(st.f32[:p.kc], o.Mat, r+i, p.k0)
			for q, v := range st.f32[:p.kc] {
				f[q*width+i] = v
			}
		}
	default:
		for g := 0; g < width; g += group {
			src, stride := p.directRows(o, r+g, group, roundUp(p.kc, 16))
			if src == nil {
				src, stride = p.stagedRows(st, o, r+g, group)
			}
			st.pack = packArgs{unsafe.Pointer(&f[g]), src, (p.kc + 15) / 16, 16 * width * 4, width * 4, stride}
			transpose(&st.pack)
		}
	}
}

// transpose turns 16 (or, left operand, exact.rows) rows of bfloat16 pairs into columns.
func (p *panelProduct) transpose(st *stage, f func(*packArgs), dst, src unsafe.Pointer, stride, pitch, step int) {
	st.pack = packArgs{dst, src, (p.kc + 31) / 32, step, pitch, stride}
	f(&st.pack)
}

// splitRow converts one staged row; the caller has set step, part and parts.
func (p *panelProduct) splitRow(st *stage, dst, src unsafe.Pointer) {
	st.split.dst, st.split.src, st.split.n = dst, src, (p.kc+31)/32
	p.ks.split(&st.split)
}

// directRows returns n stored rows from r as they lie in memory, if they are float32 and depth elements of each may be read,
// and nil otherwise.
func (p *panelProduct) directRows(o operand, r, n, depth int) (src unsafe.Pointer, stride int) {
	if o.kMajor || o.DType() != kernels.F32 || r+n > o.Rows || o.Off+(r+n-1)*o.Stride+p.k0+depth > o.Buf.Len {
		return nil, 0
	}
	return o.at(r, p.k0), o.strideBytes()
}

// stagedRows returns n rows from r as float32, with zeros after the block's depth up to a multiple of 32, and zeros for rows
// after the operand's last.
func (p *panelProduct) stagedRows(st *stage, o operand, r, n int) (src unsafe.Pointer, stride int) {
	if p.kc%32 == 0 {
		if src, stride = p.directRows(o, r, n, p.kc); src != nil {
			return src, stride
		}
	}
	depth := roundUp(p.kc, 32)
	rows := min(n, max(0, o.rows()-r))
	if o.kMajor {
		p.gather(st, o, r, rows)
	} else {
		for i := range rows {
			p.ks.widen(st.f32[i*stagePitch:][:p.kc], o.Mat, r+i, p.k0)
		}
	}
	for i := range n {
		row := st.f32[i*stagePitch:][:depth]
		if i >= rows {
			clear(row)
		} else {
			clear(row[p.kc:])
		}
	}
	return unsafe.Pointer(&st.f32), stagePitch * 4
}

// gather brings rows of a transposed operand into the stage, in 16×16 squares where it can.
func (p *panelProduct) gather(st *stage, o operand, r, rows int) {
	whole := 0
	if rows == stageRows && o.DType() == kernels.F32 && p.ks.group == stageRows {
		whole = p.kc / 16 * 16
	}
	for q := 0; q < whole; q += 16 {
		st.pack = packArgs{unsafe.Pointer(&st.f32[q]), o.at(p.k0+q, r), 1, 0, stagePitch * 4, o.strideBytes()}
		p.ks.packB(&st.pack)
	}
	for q := whole; q < p.kc; q++ {
		for i := range rows {
			st.f32[i*stagePitch+q] = weightAt(o.Mat, p.k0+q, r+i)
		}
	}
}

// pairedRows returns 16 rows of bfloat16 from r, with zeros after the block's depth up to a multiple of 32 and for rows after
// the last.
func (p *panelProduct) pairedRows(st *stage, o operand, r int) (src unsafe.Pointer, stride int) {
	depth := roundUp(p.kc, 32)
	rows := min(stageRows, max(0, o.Rows-r))
	if rows == stageRows && depth == p.kc {
		src, stride = o.at(r, p.k0), o.strideBytes()
	} else {
		for i := range stageRows {
			row := st.u16[i*stagePitch:][:depth]
			clear(row)
			if i < rows {
				copy(row, o.RowU16(r + i)[p.k0:][:p.kc])
			}
		}
		src, stride = unsafe.Pointer(&st.u16), stagePitch*2
	}
	return src, stride
}

// packPairRows packs 16 columns of a bfloat16 matrix stored as [k, rows].
func (p *panelProduct) packPairRows(st *stage, dst []uint32, r, pitch, step int) {
	rows := min(stageRows, max(0, p.b.Cols-r))
	zero := &st.u16[0]
	clear(st.u16[:stageRows])
	for q := 0; q < roundUp(p.kc, 32); q += 2 {
		lo, hi := zero, zero
		if q < p.kc && rows > 0 {
			lo = (*uint16)(p.b.at(p.k0+q, r))
		}
		if q+1 < p.kc && rows > 0 {
			hi = (*uint16)(p.b.at(p.k0+q+1, r))
		}
		p.ks.pairRows(&dst[(q/32*step+q%32/2*pitch)/4], lo, hi, rows)
	}
}
