package cpu

import (
	"encoding/binary"
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// fusedKernels multiply stored elements of one type as they are expanded.
type fusedKernels struct {
	by      []func(*fusedArgs) // by rows of x, less 1; empty: none
	maxRows int                // more rows of x are better off with the expanded elements kept
	// read stored elements of the four rows only; else as many as a row has columns, in whole steps
	careful   bool
	evenFirst bool // the even columns of a step come before the odd ones
}

// tileRows is the number of rows of x from which tiles multiply faster where they can.
const tileRows = 5

// fusedRows is the largest number of rows of x for which fused applies.
func (s *sparseOps) fusedRows(w kernels.Sparse) int {
	rows := s.sparse.fused(w.DType()).maxRows
	if s.canTile(w) {
		rows = min(rows, tileRows-1)
	}
	return rows
}

// fusedStep is the columns that a fused kernel takes at a time.
const fusedStep = 32

// fusedArgs are the operands of a fused kernel: out[r·rows+i] = Σ_p w[r][p]·x[i][p] for four rows of w and rows
// rows of x, which are packed; see packRows. The assembly knows the offsets.
type fusedArgs struct {
	mask, x, out unsafe.Pointer
	maskStride   int // bytes
	steps        int
	ahead        int // bytes that elements are prefetched ahead
	tails        int // 1 if one more step follows, with the masks in tail
	tail         [4]uint32
	values       [4]uintptr
	table        unsafe.Pointer // as in expandArgs
}

// fusedProduct is a product in progress of few rows of x and a sparse weight. The dense product in it stores
// the results.
type fusedProduct struct {
	skinnyProduct
	fusedKernels
	w      kernels.Sparse
	table  unsafe.Pointer
	packed []float32
	per    int // rows of w per piece

	run func(piece int) // runPiece, bound once
}

var fusedProducts = sync.Pool{New: func() any {
	p := &fusedProduct{}
	p.run = p.runPiece
	return p
}}

// fused returns the fused kernels for a type of weight.
func (s *sparseKernels) fused(t kernels.DType) *fusedKernels {
	switch t {
	case kernels.F32:
		return &s.fusedF32
	case kernels.BF16:
		return &s.fusedBF16
	}
	return &s.fusedF16
}

// fused is matMul for at most fusedRows rows of x.
func (s *sparseOps) fused(dst, x kernels.Mat, w kernels.Sparse, o kernels.MatMul) {
	// The last rows go another way: a kernel reads a whole step of stored elements, and there it would read beyond the
	// end of the buffer.
	safe := s.safeRows(w)
	if rest := w.Rows() - safe; rest > 0 {
		part := o
		if !o.Bias.IsZero() {
			part.Bias = o.Bias.ColRange(safe, w.Rows())
			o.Bias = o.Bias.ColRange(0, safe)
		}

		s.fewRows(dst.ColRange(safe, w.Rows()), x, w.RowRange(safe, w.Rows()), part)
		dst, w = dst.ColRange(0, safe), w.RowRange(0, safe)
	}

	if safe == 0 {
		return
	}

	p := fusedProducts.Get().(*fusedProduct)
	p.skinnyProduct.set(&s.ks, dst, x, denseLike(w), o)
	p.w, p.fusedKernels, p.table = w, *s.sparse.fused(w.DType()), tableFor(w.DType())
	p.per = max(4, 2*skinnyBytes/(w.Cols*w.DType().Size())/4*4)

	p.packRows()
	s.d.parallel(pieces(w.Rows(), p.per), p.run)
	p.w = kernels.Sparse{}
	p.drop()
	fusedProducts.Put(p)
}

// safeRows is how many rows of a weight the fused kernels may take without reading beyond the last stored element.
func (s *sparseOps) safeRows(w kernels.Sparse) int {
	n := w.Rows()
	if s.sparse.fused(w.DType()).careful {
		return n
	}
	for n > 0 && rowOffset(w, n-1)+roundUp(w.Cols, fusedStep) > w.Values.Cols {
		n--
	}
	return n
}

// packRows brings x into the order [group of rows][step][row][32], filled up with zeros, where a group has as
// many rows as the largest kernel takes, and the last one those that are left.
func (p *fusedProduct) packRows() {
	m, k := p.x.Rows, p.x.Cols
	pitch := roundUp(k, fusedStep)
	if cap(p.packed) < m*pitch {
		p.packed = make([]float32, m*pitch)
	}

	p.packed = p.packed[:m*pitch]
	for i := range m {
		first := i / len(p.by) * len(p.by)
		group := min(len(p.by), m-first)
		row, packed := p.x.RowF32(i), p.packed[first*pitch:]
		for j := 0; j < k; j += fusedStep {
			var last [fusedStep]float32
			src := row[j:]
			if len(src) < fusedStep {
				copy(last[:], src)
				src = last[:]
			}

			packStep((*[fusedStep]float32)(packed[j*group+(i-first)*fusedStep:]), (*[fusedStep]float32)(src),
				p.evenFirst)
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
	a := &q.args
	size := p.w.DType().Size()
	tail := p.w.Cols % fusedStep
	a.mask, a.out, a.table = address(p.w.Mask, j, 0), unsafe.Pointer(&st.out), p.table
	a.steps, a.maskStride = p.w.Cols/fusedStep, 0
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
	for i := 0; i < p.x.Rows; i += len(p.by) {
		rows := min(len(p.by), p.x.Rows-i)
		a.x, a.tails = unsafe.Pointer(&p.packed[i*roundUp(p.w.Cols, fusedStep)]), min(tail, 1)
		p.by[rows-1](a)
		p.store(st, i, rows, j, n)
	}
}

// aheadOf is how far to prefetch when the last of four rows starts span bytes after the first: the place in the
// next four rows where those are short enough for the first-level cache to keep it, else further along the
// rows.
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
