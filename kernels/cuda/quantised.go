//go:build linux && (amd64 || arm64)

package cuda

import (
	"strings"

	"github.com/modelcompress/compress/kernels"
)

// quantArgs mirrors QuantArgs of quantised.cu.
type quantArgs struct {
	w, scales, zeros               mat
	format, zerosType, group, cols int32
}

// valuesArgs mirrors ValuesArgs of quantised.cu.
type valuesArgs struct {
	q     quantArgs
	d     mat
	ids   uintptr
	t     int32
	scale float32
}

// fewQuantArgs mirrors FewQuantArgs of quantised.cu.
type fewQuantArgs struct {
	q                     quantArgs
	d, x                  mat
	bias                  uintptr
	biasType, add, vec, _ int32
}

// quantised is a weight in few bits on the device.
type quantised struct {
	data, scales, zeros view
	format              kernels.QuantFormat
	group, cols         int
}

// quant is a weight whose parts are on the device until the operation ends.
func (d *Device) quant(w kernels.Quantised) quantised {
	return quantised{d.of(w.Data), d.of(w.Scales), d.of(w.Zeros), w.Format, w.Group, w.Cols}
}

// rowRange views rows [lo, hi).
func (w quantised) rowRange(lo, hi int) quantised {
	w.data = w.data.rowRange(lo, hi)
	if w.scales.p != 0 {
		w.scales = w.scales.rowRange(lo, hi)
	}
	if w.zeros.p != 0 {
		w.zeros = w.zeros.rowRange(lo, hi)
	}
	return w
}

func (w quantised) args() quantArgs {
	return quantArgs{
		w: w.data.mat(), scales: w.scales.mat(), zeros: w.zeros.mat(), format: int32(w.format),
		zerosType: int32(w.zeros.t), group: int32(w.group), cols: int32(w.cols),
	}
}

// kernel names the kernel of a kind for the weight: the codes are read two bytes at a time where they lie so.
func (w quantised) kernel(kind string) string {
	name := "quantised." + kind + "_" + strings.ToLower(w.format.String())
	if w.data.p%2 != 0 || w.data.stride%2 != 0 {
		name += "_odd"
	}
	return name
}

// values writes rows of the weight, those that ids names or all.
func (d *Device) values(dst view, w quantised, ids uintptr, scale float32) {
	if dst.rows == 0 || dst.cols == 0 {
		return
	}
	args := valuesArgs{q: w.args(), d: dst.mat(), ids: ids, t: int32(dst.t), scale: scale}
	launch(d, w.kernel("values"), lines(dst.rows), &args)
}

// quantOperands lists the parts of a weight as operands.
func quantOperands(w kernels.Quantised, others ...kernels.Mat) []kernels.Mat {
	return append([]kernels.Mat{w.Data, w.Scales, w.Zeros}, others...)
}

func (d *Device) expandQuantised(dst kernels.Mat, w kernels.Quantised) {
	need(w.Consistent(), "cuda: ExpandQuantised: parts of the quantised weight do not fit together")
	need(dst.Rows == w.Rows() && dst.Cols == w.Cols, "cuda: ExpandQuantised: destination has another shape")
	t := dst.DType()
	need(t == kernels.F32 || t == kernels.BF16 || t == kernels.F16,
		"cuda: ExpandQuantised: destination of another type")
	if dst.Len() == 0 {
		return
	}
	d.operate("ExpandQuantised", func() { d.values(d.of(dst), d.quant(w), 0, 1) }, []kernels.Mat{dst},
		quantOperands(w)...)
	changed(dst)
}

func (d *Device) gatherQuantised(dst kernels.Mat, w kernels.Quantised, ids []int32, scale float32) {
	need(w.Consistent(), "cuda: GatherQuantised: parts of the quantised weight do not fit together")
	need(dst.Rows == len(ids) && dst.Cols == w.Cols && dst.DType() == kernels.F32,
		"cuda: GatherQuantised: shapes do not agree, or the destination is not F32")
	for _, id := range ids {
		need(id >= 0 && int(id) < w.Rows(), "cuda: GatherQuantised: row id outside the weight")
	}
	if dst.Len() == 0 {
		return
	}

	d.operate("GatherQuantised", func() {
		list := d.ints(ids)
		d.values(d.of(dst), d.quant(w), list, scale)
		d.drop(list)
	}, []kernels.Mat{dst}, quantOperands(w)...)
	changed(dst)
}

// matMulQuantised multiplies few rows straight with the codes. For more it expands as many rows of the weight as the
// scratch memory holds: what crosses the memory bus twice is a part that stays in the cache. Under [kernels.Fast] the
// rows of x are rounded to BF16 then, which is off by less than a rounding to signed bytes.
func (d *Device) matMulQuantised(dst, x kernels.Mat, w kernels.Quantised, o kernels.MatMul) {
	need(w.Consistent(), "cuda: MatMulQuantised: parts of the quantised weight do not fit together")
	need(x.Rows == dst.Rows && w.Rows() == dst.Cols && x.Cols == w.Cols, "cuda: MatMulQuantised: shapes do not agree")
	need(x.DType() == kernels.F32 && dst.DType() == kernels.F32, "cuda: MatMulQuantised: operands are not F32")
	checkBias(dst, o)
	if dst.Len() == 0 {
		return
	}

	d.operate("MatMulQuantised", func() {
		out, left := d.of(dst), d.of(x)
		q := d.quant(w)
		if x.Rows <= fewRows && x.Cols > 0 {
			d.fewQuantised(out, left, q, d.of(o.Bias), o.Accumulate)
			return
		}

		p := panels{rows: w.Rows(), cols: w.Cols, t: kernels.F32, rough: o.Precision == kernels.Fast}
		p.write = func(part view, lo int) { d.values(part, q.rowRange(lo, lo+part.rows), 0, 1) }
		d.byPanels(out, left, p, d.of(o.Bias), o)
	}, []kernels.Mat{dst}, quantOperands(w, x, o.Bias)...)

	changed(dst)
}

// fewQuantised computes a product with few rows in x.
func (d *Device) fewQuantised(dst, x view, w quantised, bias view, add bool) {
	for lo := 0; lo < x.rows; lo += 4 {
		hi := min(lo+4, x.rows)
		part := x.rowRange(lo, hi)
		args := fewQuantArgs{
			q: w.args(), d: dst.rowRange(lo, hi).mat(), x: part.mat(), bias: bias.p, biasType: int32(bias.t),
			add: flag(add), vec: flag(x.cols%8 == 0 && part.aligned()),
		}
		launch(d, w.kernel("few"), grid{x: (dst.cols + 7) / 8, y: 1, threads: 256}, &args)
	}
}
