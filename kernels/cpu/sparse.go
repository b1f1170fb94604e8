package cpu

import (
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// sparseOps are the operations on sparse weights of one device. The weight is read as it lies in memory; what a product
// does with it depends on the rows of x:
//
//   - very few: elements go from memory into the lanes that the mask names and are multiplied there; see fusedProduct.
//   - few: a piece of the weight is expanded into scratch memory that stays in the second-level cache, and multiplied
//     by the kernels for dense weights; or, where tiles multiply and for any number of rows, 32×32 elements at a
//     time are expanded into tiles; see sparseProduct.
//   - many: as few, a block of the inner size at a time, which is packed into panels; see sparsePanels.
//
// Elements that are not stored are zeros that are multiplied like others, in all three.
type sparseOps struct {
	matmuls
	sparse sparseKernels
}

// sparseKernels holds the kernels for sparse weights of one choice of instruction sets.
type sparseKernels struct {
	words, doubles expandKernel // for elements of 16 and 32 bits

	tiles func(parts, rows int) func(*sparseTileArgs) // kernel for a bfloat16 weight and up to 32 rows of x; nil: none

	fusedF32, fusedBF16, fusedF16 fusedKernels
}

// sparseOps fills in the operations on sparse weights.
func (d *Device) sparseOps(o *kernels.Ops) {
	s := &sparseOps{matmuls: *d.matmuls(), sparse: sparseKernelsOf(d.isa)}
	o.MatMulSparse = s.matMul
	o.Expand = s.expand
}

// matMul computes dst[i,j] = Σ_p x[i,p]·w[j,p] (+ bias[j], + dst[i,j]) with zeros where w has no element.
func (s *sparseOps) matMul(dst, x kernels.Mat, w kernels.Sparse, o kernels.MatMul) {
	checkSparse(w)
	checkMatMul(dst, o, x.Rows, w.Rows(), x.Cols, w.Cols)
	checkActivations(dst, x)

	switch {
	case dst.Len() == 0:
	case x.Cols == 0:
		emptyProduct(dst, o)
	case x.Rows <= s.fusedRows(w):
		s.fused(dst, x, w, o)
	case x.Rows <= skinnyRows || s.canTile(w):
		s.fewRows(dst, x, w, o)
	default:
		s.manyRows(dst, x, w, o)
	}

	dst.Buf.Changed()
}

// expand writes all elements of w to dst.
func (s *sparseOps) expand(dst kernels.Mat, w kernels.Sparse) {
	checkSparse(w)
	if dst.Rows != w.Rows() || dst.Cols != w.Cols || dst.DType() != w.DType() {
		panic("cpu: destination of an expansion has another shape or type")
	}
	checkInside(dst)
	if dst.Len() > 0 {
		s.expandRows(dst, w)
	}
	dst.Buf.Changed()
}

func checkActivations(dst, x kernels.Mat) {
	if dst.DType() != kernels.F32 || x.DType() != kernels.F32 {
		panic("cpu: activations of a matrix product are not F32")
	}
	checkInside(dst)
	checkInside(x)
}

// checkSparse guards the kernels against a weight whose parts leave their buffers, as far as that shows without
// counting the bits of the mask.
func checkSparse(w kernels.Sparse) {
	if !w.Consistent() {
		panic("cpu: parts of a sparse weight do not fit together")
	}

	checkInside(w.Mask)
	checkInside(w.Values)
	checkInside(w.Offsets)

	last := int64(0)
	for _, n := range w.Offsets.Buf.I64()[w.Offsets.Off:][:w.Rows()] {
		if n < last || n > int64(w.Values.Cols) {
			panic("cpu: row offsets of a sparse weight fall or leave its elements")
		}
		last = n
	}
}

// denseTypes are buffers without memory, for views that stand for expanded weights.
var denseTypes = map[kernels.DType]*kernels.Buffer{
	kernels.F32: {DType: kernels.F32}, kernels.BF16: {DType: kernels.BF16}, kernels.F16: {DType: kernels.F16},
}

// denseLike has the shape and type of the expanded weight, but no memory.
func denseLike(w kernels.Sparse) kernels.Mat {
	return kernels.Mat{Buf: denseTypes[w.DType()], Rows: w.Rows(), Cols: w.Cols, Stride: w.Cols}
}

// scratch is memory for expanded elements of every type.
type scratch struct {
	buffers [kernels.F16 + 1]*kernels.Buffer
}

// mat is a rows×cols matrix of the scratch memory, its contents left over from the last use.
func (s *scratch) mat(t kernels.DType, rows, cols int) kernels.Mat {
	if b := s.buffers[t]; b == nil || b.Len < rows*cols {
		s.buffers[t] = kernels.NewHost(t, rows*cols)
	}
	s.buffers[t].Changed()
	return kernels.MatOf(s.buffers[t], rows, cols)
}

// rowOffset is how many stored elements lie before row i.
func rowOffset(w kernels.Sparse, i int) int { return int(w.Offsets.Buf.I64()[w.Offsets.Off+i]) }

// valuesAt is the address of stored element i, which may be the one after the last. Kernels move it on beyond
// the memory that is pointed to, so it is not a pointer; whoever uses it keeps w.
func valuesAt(w kernels.Sparse, i int) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(w.Values.Buf.Bytes()))) + uintptr((w.Values.Off+i)*w.DType().Size())
}
