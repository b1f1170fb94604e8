package quantize

import (
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// clipSteps is how many shares of the range the search of [RangeClip] tries: 1, 0.95, … 0.55.
const clipSteps = 10

// clip finds the share of its range that each scale is fitted to, by the errors of the outputs that come from the
// weights that share it. Queries and keys stay as they are, whose products are what counts (AutoAWQ); so does what no
// token came to.
func (w *walk) clip(r *rounding) error {
	switch r.lin.Role {
	case arch.Q, arch.K, arch.QKV, arch.QA, arch.QB:
		return nil
	}
	tokens := w.inputsOr(r.stats).SpreadOf(r.lin.Name)
	if tokens.IsZero() {
		return nil
	}
	x := flipped(tokens)
	if by := w.scaling.columnsOf(r.lin.Name); by != nil {
		for j, s := range by {
			row := x.RowF32(j)
			for k := range row {
				row[k] /= s
			}
		}
	}

	g := r.grid
	best := make([]float64, len(g.scale))
	shares := make([]float32, len(g.scale))
	changed := kernels.MatOf(kernels.NewHost(kernels.F32, r.before.Len()), g.rows, g.cols)
	out := kernels.MatOf(kernels.NewHost(kernels.F32, g.rows*x.Cols), g.rows, x.Cols)
	for step := range clipSteps {
		share := 1 - float32(step)/20
		g.shares = repeated(share, len(g.scale))
		g.fit(r.before, r.largest, w.threads)
		copy(changed.Buf.F32(), r.before.Buf.F32())
		g.values(changed, w.threads)
		subtract(changed, r.before, w.threads)

		for group := range g.width {
			from := group * g.across
			to := min(g.cols, from+g.across)
			clear(out.Buf.F32())
			out.Buf.Changed()
			w.multiply(out, changed.ColRange(from, to), x.RowRange(from, to))

			lost := make([]float64, len(g.scale)/g.width)
			for i, e := range w.squares(out) {
				lost[i/g.down] += e
			}
			for band, e := range lost {
				if at := band*g.width + group; step == 0 || e < best[at] {
					best[at] = e
					shares[at] = share
				}
			}
		}
	}

	g.shares = shares
	return nil
}

func repeated(v float32, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// subtract takes a matrix from another, both in host memory.
func subtract(from, m kernels.Mat, threads int) {
	mmapsafe.Split(threads, m.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := from.RowF32(i)
			for j, v := range m.RowF32(i) {
				row[j] -= v
			}
		}
	})
	from.Buf.Changed()
}
