package cpu

import (
	"encoding/binary"
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// fusedRows is the largest number of rows of x for which stored elements are multiplied as they are expanded: with more, it
// pays to keep the expanded elements.
const fusedRows = 4

// fusedStep is the columns that a fused kernel takes at a time.
const fusedStep = 32

// fusedArgs are the operands of a fused kernel: out[r·rows+i] = Σ_p w[r][p]·x[i][p] for four rows of w and rows rows of x,
// which are packed; see packX. The assembly knows the offsets.
type fusedArgs struct {
	mask, x, out unsafe.Pointer
	maskStride   int // bytes
	steps        int
	ahead        int // bytes that elements are prefetched ahead
	tails        int // 1 if one more step follows, with the masks in tail
	tail         [4]uint32
	values       [4]uintptr
}

// fusedProduct is a product in progress of few rows of x and a sparse weight. The dense product in it stores the results.
type fusedProduct struct {
	skinnyProduct
	w       kernels.Sparse
	kernels []func(*fusedArgs)
	packed  []float32
	per     int // rows of w per piece

	run func(piece int) // runPiece, bound once
}

var fusedProducts = sync.Pool{New: func() any {
	p := &fusedProduct{}
	p.run = p.runPiece
	return p
}}

// fused returns the fused kernels for a type of weight.
func (s *sparseKernels) fused(t kernels.DType) []func(*fusedArgs) {
	switch t {
	case kernels.F32:
		return s.fusedF32
	case kernels.BF16:
		return s.fusedBF16
	}
	return s.fusedF16
}

// fused is matMul for at most fusedRows rows of x.
func (s *sparseOps) fused(dst, x kernels.Mat, w kernels.Sparse, o kernels.MatMul) {
	p := fusedProducts.Get().(*fusedProduct)
	p.skinnyProduct.set(&s.ks, dst, x, denseLike(w), o)
	p.w, p.kernels = w, s.sparse.fused(w.DType())
	p.per = max(4, 2*skinnyBytes/(w.Cols*w.DType().Size())/4*4)
	p.packX()
	s.d.parallel(pieces(w.Rows(), p.per), p.run)
	p.w = kernels.Sparse{}
	p.drop()
	fusedProducts.Put(p)
}

// packX brings x into the order [step][row][32], filled up with zeros. For a bfloat16 weight the 16 even columns of a step
// come before the odd ones: a shift and a mask widen elements in that order.
func (p *fusedProduct) packX() {
	m, k := p.x.Rows, p.x.Cols
	size := roundUp(k, fusedStep) * m
	if cap(p.packed) < size {
		p.packed = make([]float32, size)
	}
	p.packed = p.packed[:size]
	for i := range m {
		row := p.x.RowF32(i)
		for j := 0; j < k; j += fusedStep {
			d := (*[fusedStep]float32)(p.packed[(j*m + i*fusedStep):])
			var last [fusedStep]float32
			src := row[j:]
			if len(src) < fusedStep {
				copy(last[:], src)
				src = last[:]
			}
			packStep(d, (*[fusedStep]float32)(src), p.w.DType() == kernels.BF16)
		}
	}
}

// packStep copies one step of one row.
func packStep(dst, src *[fusedStep]float32, evenFirst bool) {
	if !evenFirst {
		*dst = *src
		return
	}
	for c := range fusedStep / 2 {
		dst[c], dst[fusedStep/2+c] = src[2*c], src[2*c+1]
	}
}

// fusedPiece is a piece of work in progress.
type fusedPiece struct{ args fusedArgs }

var fusedPieces = sync.Pool{New: func() any { return new(fusedPiece) }}

// runPiece computes p.per columns of dst, four at a time.
func (p *fusedProduct) runPiece(piece int) {
	q := fusedPieces.Get().(*fusedPiece)
	st := getStage(p.ks, nil)
	j, end := piece*p.per, min(p.w.Rows(), (piece+1)*p.per)
	for ; j+4 <= end; j += 4 {
		p.rows4(st, q, j, 4)
	}
	for ; j < end; j++ {
		p.rows4(st, q, j, 1)
	}
	q.args = fusedArgs{}
	fusedPieces.Put(q)
	stages.Put(st)
}

// rows4 computes n columns of dst from column j: 4, or 1 with the one row of w taken four times.
func (p *fusedProduct) rows4(st *stage, q *fusedPiece, j, n int) {
	a, size, tail := &q.args, p.w.DType().Size(), p.w.Cols%fusedStep
	a.mask, a.x, a.out = address(p.w.Mask, j, 0), unsafe.Pointer(&p.packed[0]), unsafe.Pointer(&st.out)
	a.steps, a.maskStride, a.tails = p.w.Cols/fusedStep, 0, min(tail, 1)
	if n == 4 {
		a.maskStride = p.w.Mask.Stride
	}
	first, last := rowOffset(p.w, j), 0
	for r := range a.values {
		row := j + r%n
		last = rowOffset(p.w, row)
		a.values[r] = valuesAt(p.w, last)
		if tail > 0 {
			a.tail[r] = tailMask(p.w.Mask.RowU8(row)[p.w.Cols/fusedStep*4:], tail)
		}
	}
	a.ahead = aheadOf((last - first) * size)
	p.kernels[p.x.Rows-1](a)
	p.store(st, 0, p.x.Rows, j, n)
}

// aheadOf is how far to prefetch when the last of four rows starts span bytes after the first: the place in the next four rows
// where those are short enough for the first-level cache to keep it, else further along the rows.
func aheadOf(span int) int {
	if span <= 24<<10 {
		return span / 3 * 4
	}
	return 2048
}

// tailMask is the mask of the last n columns, fewer than a step.
func tailMask(p []uint8, n int) uint32 {
	var b [4]uint8
	copy(b[:], p)
	return binary.LittleEndian.Uint32(b[:]) & (1<<n - 1)
}
