package cpu

import (
	"github.com/modelcompress/compress/kernels"
)

// quantOps are the operations on quantised weights of one device. The weight is read as it lies in memory; no copy of
// it as floats is larger than what stays in the second-level cache:
//
//   - few rows of x: codes become floats in registers and are multiplied there; see codeRows. Where there is no kernel
//     for that, a piece of the weight is expanded and multiplied by the kernels for dense weights; see quantFew.
//   - many: a piece is expanded, a block of the inner size at a time, which is packed into panels; see quantPanels.
type quantOps struct {
	matmuls
	l *layers
	q quantKernels
}

// quantOps fills in the operations on quantised weights.
func (d *Device) quantOps(o *kernels.Ops) {
	q := &quantOps{matmuls: *d.matmuls(), l: &layers{d: d, v: vectorLoops(d.isa)}, q: quantKernelsOf(d.isa)}
	o.MatMulQuantised = q.matMul
	o.GatherQuantised = q.gather
	o.ExpandQuantised = q.expand
}

// matMul computes dst[i,j] = Σ_p x[i,p]·w[j,p] (+ bias[j], + dst[i,j]).
func (q *quantOps) matMul(dst, x kernels.Mat, w kernels.Quantised, o kernels.MatMul) {
	checkQuantised(w)
	checkMatMul(dst, o, x.Rows, w.Rows(), x.Cols, w.Cols)
	checkActivations(dst, x)

	switch {
	case dst.Len() == 0:
	case x.Cols == 0:
		emptyProduct(dst, o)
	case o.Precision == kernels.Fast && x.Rows <= byteRowLimit && q.canRow(w):
		q.byteRows(dst, x, w, o)
	case o.Precision == kernels.Fast && x.Rows > byteRowLimit && q.canTile(w):
		q.byteTiles(dst, x, w, o)
	case x.Rows <= skinnyRows && q.canCode(w):
		q.codeRows(dst, x, w, o)
	case x.Rows <= skinnyRows:
		q.fewRows(dst, x, w, o)
	default:
		q.manyRows(dst, x, w, o)
	}

	dst.Buf.Changed()
}

// expandBlock is how many elements are expanded to float32 on their way to a narrower type.
const expandBlock = 1024

// expand writes the values of w to dst.
func (q *quantOps) expand(dst kernels.Mat, w kernels.Quantised) {
	checkQuantised(w)
	must(dst.Rows == w.Rows() && dst.Cols == w.Cols, "cpu: destination of an expansion has another shape")
	checkWeight(dst)

	per := max(1, 4*expandBytes/4/max(w.Cols, 1))
	q.d.parallel(pieces(dst.Rows, per), func(piece int) {
		for i := piece * per; i < min(dst.Rows, (piece+1)*per); i++ {
			q.expandRow(dst, w, i)
		}
	})
	dst.Buf.Changed()
}

// expandRow writes row i of w to that of dst.
func (q *quantOps) expandRow(dst kernels.Mat, w kernels.Quantised, i int) {
	if dst.DType() == kernels.F32 {
		q.decode(dst.RowF32(i), w, i, 0)
		return
	}

	st := getStage(&q.ks, nil)
	defer stages.Put(st)
	for j := 0; j < w.Cols; j += expandBlock {
		n := min(expandBlock, w.Cols-j)
		q.decode(st.f32[:n], w, i, j)
		q.l.narrow(dst.RowU16(i)[j:j+n], st.f32[:n], dst.DType())
	}
}

// gather writes row ids[i] of w, times scale, to row i of dst.
func (q *quantOps) gather(dst kernels.Mat, w kernels.Quantised, ids []int32, scale float32) {
	checkQuantised(w)
	must(dst.Rows == len(ids) && dst.Cols == w.Cols, "cpu: GatherQuantised: shapes do not agree")
	must(dst.DType() == kernels.F32, "cpu: GatherQuantised: destination is not F32")
	checkInside(dst)
	for _, id := range ids {
		must(id >= 0 && int(id) < w.Rows(), "cpu: GatherQuantised: row id outside the weight")
	}

	q.l.each(len(ids), dst.Len(), func(i int) {
		row := dst.RowF32(i)
		q.decode(row, w, int(ids[i]), 0)
		if scale != 1 {
			q.l.v.scale(row, row, scale)
		}
	})
	dst.Buf.Changed()
}

// checkQuantised guards the kernels against a weight whose parts leave their buffers.
func checkQuantised(w kernels.Quantised) {
	must(w.Consistent(), "cpu: parts of a quantised weight do not fit together")
	checkInside(w.Data)
	if !w.Scales.IsZero() {
		checkInside(w.Scales)
	}
	if !w.Zeros.IsZero() {
		checkInside(w.Zeros)
	}
}

// quantLike has the shape of the expanded weight, but no memory.
func quantLike(w kernels.Quantised) kernels.Mat {
	return kernels.Mat{Buf: denseTypes[kernels.F32], Rows: w.Rows(), Cols: w.Cols, Stride: w.Cols}
}
