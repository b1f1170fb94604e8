package cpu

import (
	"math/bits"
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// expandKernel expands parts of rows.
type expandKernel struct {
	run     func(*expandArgs) // nil: in Go
	lanes   int               // columns in a group, a multiple of 8
	careful bool              // read no stored elements but those that go to dst; else as many as there are columns
}

// expandArgs are the operands of an expander: groups groups of columns, from the first bit of mask, go to dst,
// with their stored elements taken from values on, and values moves on to the first that was not taken. The
// assembly knows the offsets.
type expandArgs struct {
	dst    unsafe.Pointer
	values uintptr
	mask   unsafe.Pointer
	groups int
	table  unsafe.Pointer // *wordTable or *doubleTable
}

// expandBytes is how much one piece of work of an expansion writes, about.
const expandBytes = 256 << 10

// expandRows writes all elements of w to dst.
func (s *sparseOps) expandRows(dst kernels.Mat, w kernels.Sparse) {
	per := max(1, expandBytes/(w.Cols*w.DType().Size()))
	s.d.parallel(pieces(w.Rows(), per), func(piece int) {
		e := expanderPool.Get().(*expander)
		e.start(&s.sparse, w)
		for i := piece * per; i < min(w.Rows(), (piece+1)*per); i++ {
			e.row(dst, i, i, 0, w.Cols, rowOffset(w, i))
		}
		e.stop()
		expanderPool.Put(e)
	})
}

// expander expands parts of rows of one weight.
type expander struct {
	expandKernel
	w    kernels.Sparse
	args expandArgs
}

func (e *expander) start(k *sparseKernels, w kernels.Sparse) {
	e.expandKernel, e.w, e.args.table = k.words, w, tableFor(w.DType())
	if w.DType() == kernels.F32 {
		e.expandKernel = k.doubles
	}
}

// tableFor is the table that AVX2 expands elements of a type by.
func tableFor(t kernels.DType) unsafe.Pointer {
	if t == kernels.F32 {
		return unsafe.Pointer(&doubleTable)
	}
	return unsafe.Pointer(&wordTable)
}

// row writes columns [j, end) of row i of the weight to row r of dst, with next the place of the first stored element
// there, and returns the place after the last. j is a multiple of 8.
func (e *expander) row(dst kernels.Mat, r, i, j, end, next int) int {
	mask := e.w.Mask.RowU8(i)[j/8 : (end+7)/8]
	n := end - j
	done := 0
	size := e.w.DType().Size()
	if groups := e.groups(n, next); groups > 0 {
		a := &e.args
		a.dst, a.values, a.mask, a.groups = address(dst, r, 0), valuesAt(e.w, next), unsafe.Pointer(&mask[0]), groups
		from := a.values
		e.run(a)
		next += int(a.values-from) / size
		done = groups * e.lanes
	}

	if done == n {
		return next
	}
	if size == 4 {
		return next + expandGo(dst.RowF32(r)[done:n], e.w.Values.RowF32(0)[next:], mask[done/8:])
	}

	return next + expandGo(dst.RowU16(r)[done:n], e.w.Values.RowU16(0)[next:], mask[done/8:])
}

// groups is how many groups of n columns the kernel may take, with next the place of the first stored element.
func (e *expander) groups(n, next int) int {
	if e.run == nil || next >= e.w.Values.Cols {
		return 0
	}
	if !e.careful {
		n = min(n, e.w.Values.Cols-next)
	}
	return n / e.lanes
}

// expandGo is the expansion in Go. It returns how many stored elements it took.
func expandGo[T uint16 | float32](dst, values []T, mask []uint8) (n int) {
	clear(dst)
	for k, m := range mask {
		for d := dst[8*k:]; m != 0; m &= m - 1 {
			d[bits.TrailingZeros8(m)] = values[n]
			n++
		}
	}
	return n
}

func (e *expander) stop() {
	e.w, e.args = kernels.Sparse{}, expandArgs{}
}

var expanderPool = sync.Pool{New: func() any { return new(expander) }}

// wordTable holds for every byte of a mask how VPSHUFB brings 16-bit elements to their lanes; doubleTable which
// of 8 32-bit elements goes to every lane, or 255 for none.
var (
	wordTable = makeTable(func(row *[16]uint8, lane, from int) {
		row[2*lane], row[2*lane+1] = uint8(2*from),
			uint8(2*from+1)
	})
	doubleTable = makeTable(func(row *[16]uint8, lane, from int) { row[lane] = uint8(from) })
)

// makeTable fills a row for every byte of a mask with 255, and calls set for every lane with a stored element.
func makeTable(set func(row *[16]uint8, lane, from int)) (table [256][16]uint8) {
	for m := range table {
		for i := range table[m] {
			table[m][i] = 255
		}

		from := 0
		for lane := range 8 {
			if m>>lane&1 == 1 {
				set(&table[m], lane, from)
				from++
			}
		}
	}

	return table
}
