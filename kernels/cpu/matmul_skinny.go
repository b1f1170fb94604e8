package cpu

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// The product of few rows, dst = x·wᵀ (NT) or x·w (NN) with up to 16 rows of x: a step of generation. Every weight is
// used once for each row of x, so the time is that of reading w, and all that counts is to read it once, front to back,
// with the prefetcher ahead.
//
// NT: w is [n,k]; an element of dst is a dot product of a row of w and a row of x. A kernel takes four rows of w and
// up to four rows of x at once: up to sixteen sums in registers, each loaded register of w used for every row of x
// (matmul_few.go does the same by blocks of k). NN: w is [k,n]; rows of w, scaled by elements of x, are added to rows
// of dst (axpy), four rows at a time, so that the sums are read and written a quarter as often; the sums of a piece's
// 512 columns stay in the first-level cache.
//
// w of a narrower type is widened in registers. A piece is some rows (NT) or columns (NN) of w; a sum is never cut, so
// the pieces don't show in the result.

// skinnyRows is the largest number of rows for which a product reads the weight as it lies in memory: beyond
// it, the panels' better reuse of registers outweighs the packing.
const skinnyRows = 16

// skinnyBytes is how much of the weight one piece of a skinny product reads, about.
const skinnyBytes = 128 << 10

// skinnyProduct is one skinny product in progress.
type skinnyProduct struct {
	ks        *kernelSet
	dst, x, w kernels.Mat
	o         kernels.MatMul
	per       int // rows (w as [n,k]) or columns (w as [k,n]) of w per piece

	out     []float32 // the buffer of dst
	bias    []float32 // the bias as float32, empty if there is none
	rounded []uint32  // x as bfloat16, every row filled up with zeros to a multiple of 32, for the pair kernels
	blocks  []uint32  // x in the order of the few kernels; see packBlocks
	depth   int       // of a block of those, 0 where they do not apply
	skip    int       // rows of w between a piece and the next one of the same thread, about

	rows, columns func(piece int) // rowsPiece and columnsPiece, bound once
}

var skinnyProducts = sync.Pool{New: func() any {
	p := &skinnyProduct{}
	p.rows, p.columns = p.rowsPiece, p.columnsPiece
	return p
}}

func (m *matmuls) startSkinny(dst, x, w kernels.Mat, o kernels.MatMul) *skinnyProduct {
	p := skinnyProducts.Get().(*skinnyProduct)
	p.set(&m.ks, dst, x, w, o)
	return p
}

func (p *skinnyProduct) set(ks *kernelSet, dst, x, w kernels.Mat, o kernels.MatMul) {
	p.ks = ks
	p.dst = dst
	p.x = x
	p.w = w
	p.o = o

	p.depth, p.skip = 0, 0

	p.out, p.bias = dst.Buf.F32(), p.bias[:0]
	if !o.Bias.IsZero() {
		p.bias = slices.Grow(p.bias, o.Bias.Cols)[:o.Bias.Cols]
		ks.widen(p.bias, o.Bias, 0, 0)
	}
}

// drop forgets the operands, which a pool must not keep alive.
func (p *skinnyProduct) drop() {
	p.dst = kernels.Mat{}
	p.x = kernels.Mat{}
	p.w = kernels.Mat{}
	p.o = kernels.MatMul{}
	p.out = nil
}

// skinnyNT is nt for few rows of x.
func (m *matmuls) skinnyNT(dst, x, w kernels.Mat, o kernels.MatMul) {
	p := m.startSkinny(dst, x, w, o)
	p.per = max(4, skinnyBytes/(w.Cols*w.DType().Size())/4*4)
	if p.pairs() {
		p.roundX()
	}
	if n := m.d.threads; n == 1 || n < pieces(w.Rows, p.per) { // a thread's only piece begins with nothing fetched
		p.packBlocks()
		p.skip = p.per * (n - 1) // pieces are handed out one after the other
	}
	m.d.parallel(pieces(w.Rows, p.per), p.rows)
	p.drop()
	skinnyProducts.Put(p)
}

// rowsPiece computes p.per columns of dst, four at a time.
func (p *skinnyProduct) rowsPiece(piece int) {
	st := getStage(p.ks, nil)
	defer stages.Put(st)
	end := min(p.w.Rows, (piece+1)*p.per)
	j := piece * p.per
	p.dotBlock(st, 0, p.x.Rows, j, end-j)
}

// dotBlock computes rows rows of dst from row i and n columns from column j.
func (p *skinnyProduct) dotBlock(st *stage, i, rows, j, n int) {
	end := j + n
	if p.depth > 0 && i == 0 && rows == p.x.Rows {
		p.fewRows(st, j, n/4*4)
		j += n / 4 * 4
	}
	for ; j+4 <= end; j += 4 {
		p.dotRows(st, i, i+rows, j, 4)
	}
	for ; j < end; j++ {
		p.dotRows(st, i, i+rows, j, 1)
	}
}

// pairs reports whether the pair kernels apply.
func (p *skinnyProduct) pairs() bool {
	return p.ks.dotPair != nil && p.w.DType() == kernels.BF16 && p.o.Precision == kernels.Fast
}

// roundX rounds x to bfloat16.
func (p *skinnyProduct) roundX() {
	st := getStage(p.ks, nil)
	defer stages.Put(st)

	k := p.x.Cols
	pitch := roundUp(k, 32) / 2
	p.rounded = grow(p.rounded, p.x.Rows*pitch)
	for i := range p.x.Rows {
		dst := p.rounded[i*pitch:][:pitch]
		st.split = splitArgs{dst: unsafe.Pointer(&dst[0]), src: address(p.x, i, 0), n: k / 32, step: 64, parts: 1}
		if k >= 32 {
			p.ks.split(&st.split)
		}

		// Zeros after the last element: the pair kernels know no tail.
		if rest := p.x.RowF32(i)[k/32*32:]; len(rest) > 0 {
			clear(st.f32[copy(st.f32[:32], rest):32])
			st.split.dst = unsafe.Pointer(&dst[k/32*16])
			st.split.src = unsafe.Pointer(&st.f32)
			st.split.n = 1
			p.ks.split(&st.split)
		}
	}
}

// dotRows computes rows [lo, hi) and n columns of dst from column j: 4, or 1 with the one row of w taken four times.
func (p *skinnyProduct) dotRows(st *stage, lo, hi, j, n int) {
	kernel, lanes := p.ks.dots(p.w.DType()), p.ks.lanes
	if kernel == nil {
		p.dotPortable(st, lo, hi, j, n)
		return
	}

	x, pitch := address(p.x, 0, 0), p.x.Stride*4
	if p.pairs() {
		kernel, lanes = p.ks.dotPair, 32
		x, pitch = unsafe.Pointer(&p.rounded[0]), roundUp(p.x.Cols, 32)*2
	}

	whole := p.w.Cols / lanes * lanes
	a := &st.dot
	*a = dotArgs{w: address(p.w, j, 0), out: unsafe.Pointer(&st.out), xStride: pitch, k: whole}
	if n == 4 { // else a stride of 0: the one row four times, for there is no kernel for one
		a.wStride = p.w.Stride * p.w.DType().Size()
	}

	a.prefetch = prefetchDistance(a.wStride)
	if p.ks.masked {
		a.tail = p.w.Cols - whole
	}

	for i := lo; i < hi; i += len(kernel) {
		rows := min(len(kernel), hi-i)
		a.x = unsafe.Add(x, i*pitch)
		kernel[rows-1](a)
		if !p.ks.masked {
			p.addTail(st, i, rows, j, n, whole)
		}

		p.store(st, i, rows, j, n)
	}
}

// prefetchDistance looks ahead to the next four rows, where the kernel is about to read: the processor's own
// prefetcher, which follows a row, starts anew at every page, and where rows are a power of two apart it does not keep
// up with four of them. Very long rows it follows well; what is fetched for them must not fall out of the second-level
// cache again.
func prefetchDistance(stride int) int { return min(4*stride, 128<<10) }

// dots returns the dot kernels for a type of weight.
func (s *kernelSet) dots(t kernels.DType) []func(*dotArgs) {
	switch t {
	case kernels.F32:
		return s.dotF32
	case kernels.BF16:
		return s.dotBF16
	}
	return s.dotF16
}

// addTail adds the elements after the last whole register.
func (p *skinnyProduct) addTail(st *stage, i, rows, j, n, from int) {
	for q := from; q < p.w.Cols; q++ {
		for r := range n {
			v := weightAt(p.w, j+r, q)
			for c := range rows {
				st.out[r*rows+c] += p.x.RowF32(i + c)[q] * v
			}
		}
	}
}

// store writes st.out[r·rows+c], row i+c and column j+r of the product.
func (p *skinnyProduct) store(st *stage, i, rows, j, n int) {
	at := p.dst.Off + i*p.dst.Stride + j
	for c := range rows {
		dst, sum := p.out[at:][:n], st.out[c:]
		if p.o.Accumulate || len(p.bias) > 0 {
			p.storeSums(dst, sum, rows, j)
		} else {
			for r := range dst {
				dst[r] = sum[r*rows]
			}
		}

		at += p.dst.Stride
	}
}

// storeSums writes sum[r·step] to dst[r], column j+r, with the bias and what is there.
func (p *skinnyProduct) storeSums(dst, sum []float32, step, j int) {
	for r := range dst {
		v := sum[r*step]
		if len(p.bias) > 0 {
			v += p.bias[j+r]
		}
		if p.o.Accumulate {
			v += dst[r]
		}

		dst[r] = v
	}
}

// dotPortable computes n columns of dst in Go, a block of w at a time.
func (p *skinnyProduct) dotPortable(st *stage, lo, hi, j, n int) {
	for i := lo; i < hi; i++ {
		clear(st.out[:n])

		for k0 := 0; k0 < p.w.Cols; k0 += stageDepth {
			x := p.x.RowF32(i)[k0:min(p.w.Cols, k0+stageDepth)]
			for r := range n {
				w := st.f32[r*stagePitch:][:len(x)]
				if i == lo || p.w.Cols > stageDepth {
					p.ks.widen(w, p.w, j+r, k0)
				}
				st.out[r] += dot(x, w)
			}
		}

		p.store(st, i, 1, j, n)
	}
}

// dot is Σ x[i]·y[i] in four sums.
func dot(x, y []float32) float32 {
	var a, b, c, d float32
	for len(x) >= 4 && len(y) >= 4 {
		a += x[0] * y[0]
		b += x[1] * y[1]
		c += x[2] * y[2]
		d += x[3] * y[3]
		x, y = x[4:], y[4:]
	}

	for i, v := range x {
		a += v * y[i]
	}

	return (a + b) + (c + d)
}

// skinnyColumns is how many columns a piece of skinnyNN sums; the sums fit the stage.
const skinnyColumns = 512

// skinnyNN is nn for few rows of x.
func (m *matmuls) skinnyNN(dst, x, w kernels.Mat, o kernels.MatMul) {
	p := m.startSkinny(dst, x, w, o)
	p.per = skinnyColumns
	m.d.parallel(pieces(w.Cols, p.per), p.columns)
	p.drop()
	skinnyProducts.Put(p)
}

// columnsPiece computes p.per columns of dst: four rows of w at a time are added to the sums of every row of x.
func (p *skinnyProduct) columnsPiece(piece int) {
	st := getStage(p.ks, nil)
	defer stages.Put(st)

	j := piece * p.per
	n := min(p.per, p.w.Cols-j)
	for i := range p.x.Rows {
		clear(st.f32[i*stagePitch:][:n])
	}

	q := 0
	for ; q+4 <= p.w.Rows; q += 4 {
		p.axpy(st, q, 4, j, n)
	}
	for ; q < p.w.Rows; q++ {
		p.axpy(st, q, 1, j, n)
	}
	for i := range p.x.Rows {
		p.storeRow(p.dst.RowF32(i)[j:][:n], st.f32[i*stagePitch:][:n], j)
	}
}

func (p *skinnyProduct) storeRow(dst, sum []float32, j int) {
	if len(p.bias) > 0 {
		for c, v := range p.bias[j:][:len(sum)] {
			sum[c] += v
		}
	}

	if !p.o.Accumulate {
		copy(dst, sum)
		return
	}

	for c, v := range sum {
		dst[c] += v
	}
}

// axpy adds rows [q, q+n) of w, n 4 or 1, to the sums of every row of x.
func (p *skinnyProduct) axpy(st *stage, q, n, j, columns int) {
	kernel, whole := p.ks.axpys(p.w.DType()), 0
	if kernel != nil && n == 4 {
		whole = columns / p.ks.lanes * p.ks.lanes
		stride := p.w.Stride * p.w.DType().Size()
		st.axpy = axpyArgs{w: address(p.w, q, j), wStride: stride, n: whole, prefetch: 4 * stride}
	}

	for i := 0; whole > 0 && i < p.x.Rows; i++ {
		st.axpy.sum = unsafe.Pointer(&st.f32[i*stagePitch])
		copy(st.axpy.scale[:], p.x.RowF32(i)[q:])
		kernel(&st.axpy)
	}

	for r := 0; whole < columns && r < n; r++ {
		p.axpyRest(st, q+r, j, whole, columns)
	}
}

// axpyRest adds elements [from, to) of row q of w to the sums of every row of x.
func (p *skinnyProduct) axpyRest(st *stage, q, j, from, to int) {
	w := st.c[from:to]
	p.ks.widen(w, p.w, q, j+from)
	for i := range p.x.Rows {
		v, sum := p.x.RowF32(i)[q], st.f32[i*stagePitch:][from:to]
		for c, y := range w {
			sum[c] += v * y
		}
	}
}

// axpys returns the axpy kernel for a type of weight.
func (s *kernelSet) axpys(t kernels.DType) func(*axpyArgs) {
	switch t {
	case kernels.F32:
		return s.axpyF32
	case kernels.BF16:
		return s.axpyBF16
	}
	return s.axpyF16
}
