//go:build linux && (amd64 || arm64)

package cuda

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// scoreArgs mirrors ScoreArgs of select.cu.
type scoreArgs struct {
	mask, x          mat
	col              uintptr
	drop             int
	histogram, state uintptr
	raw, pass, n, m  int32
}

// selection checks the operands of a selection and runs f with the arguments that all have in common.
func (d *Device) selection(op string, mask kernels.Mat, s kernels.Score, f func(args scoreArgs, t string)) {
	need(same(mask, s.X), "cuda: Select: the mask is not shaped like the scores")
	need(s.Col.IsZero() || (s.Col.Rows == 1 && s.Col.Cols == s.X.Cols), "cuda: Select: Col is not one row of X's width")
	if mask.Len() == 0 {
		return
	}

	d.operate(op, func() {
		f(scoreArgs{mask: d.of(mask).mat(), x: d.of(s.X).mat(), col: d.of(s.Col).p, raw: flag(s.Raw)},
			typeName(s.X.DType()))
	}, []kernels.Mat{mask}, s.X, s.Col)

	changed(mask)
}

func (d *Device) selectRows(mask kernels.Mat, s kernels.Score, drop int) {
	d.selection("SelectRows", mask, s, func(args scoreArgs, t string) {
		args.drop = drop
		g := grid{x: min(mask.Rows, 1<<20), y: 1, threads: 512}
		switch c := mask.Cols; {
		case c <= 16*256:
			g.threads = 256
			launch(d, "select.select_rows_"+t+"_16", g, &args)
		case c <= 24*512:
			launch(d, "select.select_rows_"+t+"_24", g, &args)
		default:
			launch(d, "select.select_rows_"+t+"_0", g, &args)
		}
	})
}

// histogramSize is the memory of select_all's counts and state in bytes.
const histogramSize = 3*2048*4 + 16

func (d *Device) selectAll(mask kernels.Mat, s kernels.Score, drop int) {
	need(mask.Len() <= math.MaxUint32, "cuda: SelectAll: more than 2³² scores")
	d.selection("SelectAll", mask, s, func(args scoreArgs, t string) {
		args.drop = min(drop, mask.Len()-1)
		counts := d.scratch(histogramSize)
		d.do(cuMemsetD8Async, counts, 0, histogramSize, d.compute)
		args.state, args.histogram = counts, counts+16

		g := plane(min(mask.Rows, 2048), mask.Cols, 2048)
		for args.pass = 0; args.pass < 3 && drop >= 0; args.pass++ {
			launch(d, "select.select_hist_"+t, g, &args)
			launch(d, "select.select_pick", grid{x: 1, y: 1, threads: 256}, &args)
		}

		launch(d, "select.select_mask_"+t, plane(mask.Rows, mask.Cols, 1024), &args)
		d.drop(counts)
	})
}

func (d *Device) selectNM(mask kernels.Mat, s kernels.Score, n, m int) {
	need(m > 0 && n >= 0 && n <= m, "cuda: SelectNM: not 0 ≤ n ≤ m")
	d.selection("SelectNM", mask, s, func(args scoreArgs, t string) {
		args.n, args.m = int32(min(n, math.MaxInt32)), int32(min(m, mask.Cols))
		kernel := map[int]string{4: "_4", 8: "_8"}[m]
		if kernel == "" {
			kernel = "_0"
		}
		launch(d, "select.select_nm_"+t+kernel, plane(mask.Rows, (mask.Cols+m-1)/m, 256), &args)
	})
}
