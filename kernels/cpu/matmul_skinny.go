package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// skinnyRows is the largest number of rows for which a product reads the weight as it lies in memory: beyond it, the panels'
// better reuse of registers outweighs the packing.
const skinnyRows = 16

// skinnyBytes is how much of the weight one piece of a skinny product reads, about.
const skinnyBytes = 128 << 10

// skinnyProduct is one skinny product in progress.
type skinnyProduct struct {
	ks        *kernelSet
	dst, x, w kernels.Mat
	o         kernels.MatMul
	per       int // rows (w as [n,k]) or columns (w as [k,n]) of w per piece

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
	p.ks, p.dst, p.x, p.w, p.o = ks, dst, x, w, o
}

// drop forgets the operands, which a pool must not keep alive.
func (p *skinnyProduct) drop() {
	p.dst, p.x, p.w, p.o = kernels.Mat{}, kernels.Mat{}, kernels.Mat{}, kernels.MatMul{}
}

// skinnyNT is nt for few rows of x.
func (m *matmuls) skinnyNT(dst, x, w kernels.Mat, o kernels.MatMul) {
	p := m.startSkinny(dst, x, w, o)
	p.per = max(4, skinnyBytes/(w.Cols*w.DType().Size())/4*4)
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
	for ; j+4 <= end; j += 4 {
		p.dotRows(st, i, i+rows, j, 4)
	}
	for ; j < end; j++ {
		p.dotRows(st, i, i+rows, j, 1)
	}
}

// dotRows computes rows [lo, hi) and n columns of dst from column j: 4, or 1 with the one row of w taken four times.
func (p *skinnyProduct) dotRows(st *stage, lo, hi, j, n int) {
	kernel := p.ks.dots(p.w.DType())
	if kernel == nil {
		p.dotPortable(st, lo, hi, j, n)
		return
	}
	whole := p.w.Cols / p.ks.lanes * p.ks.lanes
	a := &st.dot
	*a = dotArgs{w: address(p.w, j, 0), out: unsafe.Pointer(&st.out), xStride: p.x.Stride * 4, k: whole}
	if n == 4 {
		a.wStride = p.w.Stride * p.w.DType().Size()
	}
	a.prefetch = prefetchDistance(a.wStride)
	if p.ks.masked {
		a.tail = p.w.Cols - whole
	}
	for i := lo; i < hi; i += len(kernel) {
		rows := min(len(kernel), hi-i)
		a.x = address(p.x, i, 0)
		kernel[rows-1](a)
		if !p.ks.masked {
			p.addTail(st, i, rows, j, n, whole)
		}
		p.store(st, i, rows, j, n)
	}
}

// prefetchDistance looks ahead along long rows, and to the next four where rows are short.
func prefetchDistance(stride int) int {
	if stride >= 4096 {
		return 2048
	}
	return 4 * stride
}

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
	for c := range rows {
		dst := p.dst.RowF32(i + c)[j:][:n]
		for r := range dst {
			v := st.out[r*rows+c]
			if !p.o.Bias.IsZero() {
				v += weightAt(p.o.Bias, 0, j+r)
			}
			if p.o.Accumulate {
				v += dst[r]
			}
			dst[r] = v
		}
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
	addBias(sum, p.o.Bias, j)
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
	}
	for i := range p.x.Rows {
		x, sum := p.x.RowF32(i)[q:][:n], st.f32[i*stagePitch:][:columns]
		if whole > 0 {
			stride := p.w.Stride * p.w.DType().Size()
			st.axpy = axpyArgs{unsafe.Pointer(&sum[0]), address(p.w, q, j), stride, whole, 4 * stride, [4]float32(x)}
			kernel(&st.axpy)
		}
		for r, v := range x {
			for c := whole; c < columns; c++ {
				sum[c] += v * weightAt(p.w, q+r, j+c)
			}
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
