//go:build linux && (amd64 || arm64)

package cuda

import (
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// bytesOf is the memory of a slice.
func bytesOf[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// normArgs mirrors NormArgs of rows.cu.
type normArgs struct {
	d, x           mat
	w, b           uintptr
	t, center, one int32
	eps            float32
}

func (d *Device) rmsNorm(dst, x, w kernels.Mat, eps float32, plusOne bool) {
	need(same(dst, x) && w.Rows == 1 && w.Cols == x.Cols, "cuda: RMSNorm: shapes do not agree")
	d.norm("RMSNorm", dst, x, w, kernels.Mat{}, normArgs{one: flag(plusOne), eps: eps})
}

func (d *Device) layerNorm(dst, x, w, b kernels.Mat, eps float32) {
	need(same(dst, x) && w.Rows == 1 && w.Cols == x.Cols, "cuda: LayerNorm: shapes do not agree")
	need(b.IsZero() || same(w, b), "cuda: LayerNorm: bias is not shaped like the weight")
	need(b.IsZero() || w.DType() == b.DType(), "cuda: LayerNorm: bias is not of the weight's type")
	d.norm("LayerNorm", dst, x, w, b, normArgs{center: 1, eps: eps})
}

func (d *Device) norm(op string, dst, x, w, b kernels.Mat, args normArgs) {
	if dst.Len() == 0 {
		return
	}
	d.operate(op, func() {
		args.d, args.x, args.w, args.b, args.t = d.of(dst).mat(), d.of(x).mat(), d.of(w).p, d.of(b).p, int32(w.DType())
		launch(d, "rows.norm_rows", lines(x.Rows), &args)
	}, []kernels.Mat{dst}, x, w, b)
	changed(dst)
}

// normBackArgs mirrors NormBackArgs of rows.cu.
type normBackArgs struct {
	dx, dy, x      mat
	w, factors     uintptr
	t, center, one int32
	eps            float32
}

func (d *Device) rmsNormBackward(dx, dw, dy, x, w kernels.Mat, eps float32, plusOne bool) {
	need(same(x, dx, dy) && w.Rows == 1 && w.Cols == x.Cols, "cuda: RMSNormBackward: shapes do not agree")
	need(dw.IsZero() || same(w, dw), "cuda: RMSNormBackward: dw is not shaped like the weight")
	d.normBackward("RMSNormBackward", dx, dw, kernels.Mat{}, dy, x, w, normBackArgs{one: flag(plusOne), eps: eps})
}

func (d *Device) layerNormBackward(dx, dw, db, dy, x, w kernels.Mat, eps float32) {
	need(same(x, dx, dy) && w.Rows == 1 && w.Cols == x.Cols, "cuda: LayerNormBackward: shapes do not agree")
	need(dw.IsZero() || same(w, dw), "cuda: LayerNormBackward: dw is not shaped like the weight")
	need(db.IsZero() || same(w, db), "cuda: LayerNormBackward: db is not shaped like the weight")
	d.normBackward("LayerNormBackward", dx, dw, db, dy, x, w, normBackArgs{center: 1, eps: eps})
}

func (d *Device) normBackward(op string, dx, dw, db, dy, x, w kernels.Mat, args normBackArgs) {
	if x.Len() == 0 {
		changed(dx, dw, db)
		return
	}

	d.operate(op, func() {
		args.dx, args.dy, args.x, args.w, args.t = d.of(dx).mat(), d.of(dy).mat(), d.of(x).mat(), d.of(w).p,
			int32(w.DType())
		// Mean and scale of every row are computed once, for the rows' gradient and for the weights'.
		args.factors = d.scratch(16 * x.Rows)
		launch(d, "rows.norm_back", lines(x.Rows), &args)

		if !dw.IsZero() || !db.IsZero() {
			c := d.columns(d.of(x), d.of(dy), args.factors, 2)
			if !dw.IsZero() {
				c.fold(d, d.of(dw), 0)
			}
			if !db.IsZero() {
				c.fold(d, d.of(db), x.Cols)
			}

			d.drop(c.part)
		}

		d.drop(args.factors)
	}, []kernels.Mat{dx, dw, db}, dy, x, w)

	changed(dx, dw, db)
}

// columnArgs mirrors ColumnArgs of rows.cu.
type columnArgs struct {
	x, y          mat
	factors, part uintptr
	kind, slice   int32
}

// foldArgs mirrors FoldArgs of rows.cu.
type foldArgs struct {
	part, acc         uintptr
	width, from       int
	cols, slices, f64 int32
}

// columnSums are sums over slices of rows, in scratch memory.
type columnSums struct {
	part         uintptr
	cols, slices int
}

// columnSlice is the fewest rows of a slice, and columnSlices the most slices: their bounds depend on the shape alone.
const (
	columnSlice  = 64
	columnSlices = 256
)

// columns sums x, its squares, or the gradients of a norm (kinds 0, 1, 2) over slices of rows.
func (d *Device) columns(x, y view, factors uintptr, kind int32) columnSums {
	slice := max(columnSlice, (x.rows+columnSlices-1)/columnSlices)
	c := columnSums{cols: x.cols, slices: (x.rows + slice - 1) / slice}
	c.part = d.scratch(16 * c.slices * c.cols)
	args := columnArgs{x.mat(), y.mat(), factors, c.part, kind, int32(slice)}
	launch(d, "rows.columns", grid{x: (x.cols + 31) / 32, y: c.slices, threads: 256}, &args)
	return c
}

// fold adds the sums, from a column on, to acc.
func (c columnSums) fold(d *Device, acc view, from int) {
	args := foldArgs{c.part, acc.p, 2 * c.cols, from, int32(c.cols), int32(c.slices), flag(acc.t == kernels.F64)}
	launch(d, "rows.fold", plane(1, c.cols, 256), &args)
}

func (d *Device) sumColumns(op string, acc, x kernels.Mat, kind int32) {
	if x.Len() == 0 {
		changed(acc)
		return
	}

	d.operate(op, func() {
		c := d.columns(d.of(x), view{}, 0, kind)
		c.fold(d, d.of(acc), 0)
		d.drop(c.part)
	}, []kernels.Mat{acc}, x)

	changed(acc)
}

func (d *Device) colSum(acc, x kernels.Mat) {
	need(acc.Rows == 1 && acc.Cols == x.Cols, "cuda: ColSum: shapes do not agree")
	d.sumColumns("ColSum", acc, x, 0)
}

func (d *Device) colSumSq(acc, x kernels.Mat) {
	need(acc.Rows == 1 && acc.Cols == x.Cols, "cuda: ColSumSq: shapes do not agree")
	need(acc.DType() == kernels.F64, "cuda: ColSumSq: acc is not F64")
	d.sumColumns("ColSumSq", acc, x, 1)
}

// softmaxArgs mirrors SoftmaxArgs of rows.cu.
type softmaxArgs struct {
	d, x         mat
	labels, loss uintptr
	scale        float32
	_            int32
}

func (d *Device) softmax(dst, x kernels.Mat) {
	need(same(dst, x), "cuda: Softmax: shapes do not agree")
	if dst.Len() == 0 {
		return
	}
	d.operate("Softmax", func() {
		launch(d, "rows.softmax", lines(x.Rows), &softmaxArgs{d: d.of(dst).mat(), x: d.of(x).mat()})
	}, []kernels.Mat{dst}, x)
	changed(dst)
}

// softmaxBackArgs mirrors SoftmaxBackArgs of rows.cu.
type softmaxBackArgs struct{ dx, dy, y mat }

func (d *Device) softmaxBackward(dx, dy, y kernels.Mat) {
	need(same(dx, dy, y), "cuda: SoftmaxBackward: shapes do not agree")
	if dx.Len() == 0 {
		return
	}
	d.operate("SoftmaxBackward", func() {
		launch(d, "rows.softmax_back", lines(y.Rows), &softmaxBackArgs{d.of(dx).mat(), d.of(dy).mat(), d.of(y).mat()})
	}, []kernels.Mat{dx}, dy, y)
	changed(dx)
}

func (d *Device) crossEntropy(loss, logits kernels.Mat, labels []int32) {
	need(loss.Rows == 1 && loss.Cols == logits.Rows && len(labels) == logits.Rows,
		"cuda: CrossEntropy: shapes do not agree")
	d.losses("CrossEntropy", kernels.Mat{}, loss, logits, labels, 0)
}

func (d *Device) crossEntropyBackward(dlogits, loss, logits kernels.Mat, labels []int32, scale float32) {
	need(same(dlogits, logits) && len(labels) == logits.Rows, "cuda: CrossEntropyBackward: shapes do not agree")
	need(loss.IsZero() || (loss.Rows == 1 && loss.Cols == logits.Rows),
		"cuda: CrossEntropyBackward: shapes do not agree")
	d.losses("CrossEntropyBackward", dlogits, loss, logits, labels, scale)
}

// losses computes losses and gradients, each if it has a destination, reading a row twice at most.
func (d *Device) losses(op string, dlogits, loss, logits kernels.Mat, labels []int32, scale float32) {
	for _, label := range labels {
		need(int(label) < logits.Cols, "cuda: CrossEntropy: label outside the row")
	}
	if len(labels) == 0 {
		return
	}

	d.operate(op, func() {
		list := d.ints(labels)
		args := softmaxArgs{
			d: d.of(dlogits).mat(), x: d.of(logits).mat(), labels: list, loss: d.of(loss).p,
			scale: scale,
		}
		launch(d, "rows.cross_entropy", lines(logits.Rows), &args)
		d.drop(list)
	}, []kernels.Mat{dlogits, loss}, logits)

	changed(dlogits, loss)
}
