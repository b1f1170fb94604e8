package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// The product of very few rows of x, rounded to bytes, and a quantised weight: a step of generation. The weight is read
// once, as it lies in memory, row after row, and multiplied in integers; what a group's sum of products is scaled by is
// read along. The row kernels have one body for every format; see
// kernels/_gen/quantised_dot.go for AVX-512 VNNI and quantised_rows_avx2.go for AVX2 and AVX-VNNI, whose sums are the
// same bits.

// byteRowLimit is the largest number of rows of x that are multiplied one by one: beyond it, tiles that use every
// loaded register of the weight several times make up for packing it.
const byteRowLimit = 6

// quantRowBytes is how much of a weight a piece of a product with a single row reads at least, about: a few
// microseconds, since matrices in few bits are small, and threads should share them evenly. Of large matrices it is a
// 256th, up to quantRowLimit: what a row kernel prefetches past its last row is read by whoever has the next piece.
const (
	quantRowBytes = 32 << 10
	quantRowLimit = 256 << 10
)

// quantRowsOf is the number of rows of w in a piece of a product with a single row.
func quantRowsOf(w kernels.Quantised) int {
	size := w.Rows() * w.Data.Cols / 256
	return max(4, min(max(size, quantRowBytes), quantRowLimit)/max(w.Data.Cols, 1))
}

// byteRows is a product in progress.
type byteRows struct {
	q         *quantOps
	dst, x    kernels.Mat
	w         kernels.Quantised
	o         kernels.MatMul
	out, bias []float32
	rows      [byteRowLimit]roundedRow
	per       int // rows of w per piece

	run func(piece int) // runPiece, bound once
}

// roundedRow is a row of x as row kernels take it.
type roundedRow struct {
	codes, lanes, sums   []uint32 // four bytes, or int32
	scales, scale, total []float32
	args                 roundArgs
}

var byteRowProducts = sync.Pool{New: func() any {
	p := &byteRows{}
	p.run = p.runPiece
	return p
}}

// canRow reports whether row kernels apply.
func (q *quantOps) canRow(w kernels.Quantised) bool {
	if q.q.row[w.Format] == nil || !w.Format.Grouped() {
		return q.q.row[w.Format] != nil
	}
	return w.Cols%64 == 0 && (w.Group == codeGroup || w.Group%64 == 0 || w.Group >= w.Cols)
}

// byteRows is matMul for very few rows of x under Fast.
func (q *quantOps) byteRows(dst, x kernels.Mat, w kernels.Quantised, o kernels.MatMul) {
	p := byteRowProducts.Get().(*byteRows)
	p.q = q
	p.dst = dst
	p.x = x
	p.w = w
	p.o = o
	p.out, p.bias = dst.Buf.F32(), p.bias[:0]
	if !o.Bias.IsZero() {
		p.bias = growFloats(p.bias, o.Bias.Cols)
		q.ks.widen(p.bias, o.Bias, 0, 0)
	}

	for i := range x.Rows {
		p.roundRow(i)
	}

	p.per = quantRowsOf(w)
	q.d.parallel(pieces(w.Rows(), p.per), p.run)
	p.dst = kernels.Mat{}
	p.x = kernels.Mat{}
	p.w = kernels.Quantised{}
	p.o, p.out = kernels.MatMul{}, nil
	byteRowProducts.Put(p)
}

// roundRow rounds row i of x.
func (p *byteRows) roundRow(i int) {
	k := p.x.Cols
	r := &p.rows[i]
	blocks := k / codeGroup
	r.codes = grow(r.codes, roundUp(k, 256)/4)
	r.lanes = grow(r.lanes, roundUp(k, 256)/4)
	r.scales = growFloats(r.scales, roundUp(k, 256)/4)
	r.scale = growFloats(r.scale, roundUp(blocks, 16))
	r.sums = grow(r.sums, 2*blocks)
	r.args = roundArgs{
		src: address(p.x, i, 0), codes: unsafe.Pointer(&r.codes[0]), lanes: unsafe.Pointer(&r.lanes[0]),
		scales: unsafe.Pointer(&r.scales[0]), sums: unsafe.Pointer(&r.sums[0]), scale: unsafe.Pointer(&r.scale[0]),
		blocks: blocks, offset: -offsetOf(p.w.Format),
	}
	if p.w.Format == kernels.Int8 {
		r.args.peak = p.q.q.top((*float32)(r.args.src), k)
	}
	p.q.q.roundFew(&r.args)
	r.args.src = nil

	if !affine(p.w.Format) && p.w.Zeros.IsZero() {
		return
	}

	step := 1
	if p.w.Format == kernels.Q4_1 || p.w.Format == kernels.Q5_1 {
		step = 8
	}
	r.total = growFloats(r.total, roundUp(step*blocks, 16))
	clear(r.total)
	for g := range blocks {
		r.total[g*step] = r.scale[g] * float32(int32(r.sums[2*g])+int32(r.sums[2*g+1]))
	}
}

// bytePiece is a piece of byteRows in progress.
type bytePiece struct {
	args  rowArgs
	sums  []float32
	zeros []float32 // of the groups of a row
}

var bytePieces = sync.Pool{New: func() any { return new(bytePiece) }}

// runPiece computes p.per columns of dst.
func (p *byteRows) runPiece(piece int) {
	e := bytePieces.Get().(*bytePiece)
	j := piece * p.per
	n := min(p.per, p.w.Rows()-j)
	plain := len(p.bias) == 0 && !p.o.Accumulate && p.w.Zeros.IsZero()
	for i := range p.x.Rows {
		out := p.out[p.dst.Off+i*p.dst.Stride+j:][:n]
		if plain {
			p.multiply(e, out, i, j)
			continue
		}

		e.sums = growFloats(e.sums, n)
		p.multiply(e, e.sums, i, j)
		if !p.w.Zeros.IsZero() {
			p.subtractZeros(e, i, j)
		}
		for c, v := range e.sums {
			if len(p.bias) > 0 {
				v += p.bias[j+c]
			}
			if p.o.Accumulate {
				v += out[c]
			}
			out[c] = v
		}
	}

	e.args = rowArgs{}
	bytePieces.Put(e)
}

// multiply writes the products of row i of x and len(out) rows of w from row j on.
func (p *byteRows) multiply(e *bytePiece, out []float32, i, j int) {
	w, r := p.w, &p.rows[i]
	step := 64
	if elements, _ := w.Format.Block(); elements == 256 {
		step = 256
	}

	a := &e.args
	*a = rowArgs{
		w: address(w.Data, j, 0), stride: w.Data.Stride, rows: len(out), steps: w.Cols / step,
		codes: unsafe.Pointer(&r.codes[0]), lanes: unsafe.Pointer(&r.lanes[0]), scales: unsafe.Pointer(&r.scales[0]),
		scale: unsafe.Pointer(&r.scale[0]), out: unsafe.Pointer(&out[0]),
	}
	if w.Cols%step != 0 {
		a.tail = 1
	}
	if affine(w.Format) {
		a.sums = unsafe.Pointer(&r.total[0])
	}

	if !w.Format.Grouped() {
		p.q.q.row[w.Format](a)
		return
	}

	a.mul, a.mulStride = address(w.Scales, j, 0), w.Scales.Stride*4
	if w.Group == codeGroup {
		p.q.q.pairs[w.Format](a)
		return
	}

	a.perGroup = min(w.Group, w.Cols) / 64
	p.q.q.row[w.Format](a)
}

// subtractZeros takes what the zeros of weights make off e.sums, of row i of x and the rows of w from row j on.
func (p *byteRows) subtractZeros(e *bytePiece, i, j int) {
	w := p.w
	total := p.rows[i].total
	offset := float32(0)
	if w.Format == kernels.Int4 {
		offset = 8 // has been taken off already
	}

	per := max(1, min(w.Group, w.Cols)/codeGroup)
	blocks := w.Cols / codeGroup
	e.zeros = growFloats(e.zeros, w.Groups())
	for c := range e.sums {
		scales := w.Scales.RowF32(j + c)
		zerosOf(e.zeros, w, j+c, 0)
		v := float32(0)
		for g, s := range scales {
			x := float32(0)
			for _, t := range total[g*per : min(blocks, (g+1)*per)] {
				x += t
			}
			v += s * (offset - e.zeros[g]) * x
		}
		e.sums[c] += v
	}
}
