package cpu

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// activate computes dst[i,j] = f(x[i,j]).
func (l *layers) activate(dst, x kernels.Mat, f kernels.Activation) {
	must(sameShape(dst, x), "cpu: Activate: shapes do not agree")
	must(f >= kernels.SiLU && f <= kernels.ReLU, "cpu: unknown activation")
	fn := l.v.act[f]
	l.pieces(x.Rows, x.Cols, dst.Dense() && x.Dense(), func(i, lo, hi int) {
		fn(span(dst, i, lo, hi), span(x, i, lo, hi))
	})
	dst.Buf.Changed()
}

// gate computes dst[i,j] = f(gate[i,j]) · up[i,j].
func (l *layers) gate(dst, gate, up kernels.Mat, f kernels.Activation) {
	must(sameShape(dst, gate) && sameShape(dst, up), "cpu: Gate: shapes do not agree")
	must(f >= kernels.SiLU && f <= kernels.ReLU, "cpu: unknown activation")
	fn := l.v.gate[f]
	l.pieces(dst.Rows, dst.Cols, dst.Dense() && gate.Dense() && up.Dense(), func(i, lo, hi int) {
		fn(span(dst, i, lo, hi), span(gate, i, lo, hi), span(up, i, lo, hi))
	})
	dst.Buf.Changed()
}

// add computes dst[i,j] = a[i,j] + scale·b[i,j].
func (l *layers) add(dst, a, b kernels.Mat, scale float32) {
	must(sameShape(dst, a) && sameShape(dst, b), "cpu: Add: shapes do not agree")
	l.pieces(dst.Rows, dst.Cols, dst.Dense() && a.Dense() && b.Dense(), func(i, lo, hi int) {
		l.v.add(span(dst, i, lo, hi), span(a, i, lo, hi), span(b, i, lo, hi), scale)
	})
	dst.Buf.Changed()
}

// softcap computes dst[i,j] = cap·tanh(x[i,j] / cap).
func (l *layers) softcap(dst, x kernels.Mat, cap float32) {
	must(sameShape(dst, x), "cpu: Softcap: shapes do not agree")
	must(cap != 0, "cpu: Softcap: cap is 0")
	l.pieces(x.Rows, x.Cols, dst.Dense() && x.Dense(), func(i, lo, hi int) {
		l.v.tanh(span(dst, i, lo, hi), span(x, i, lo, hi), 1/cap, cap)
	})
	dst.Buf.Changed()
}

// softmax computes dst[i,j] = exp(x[i,j] - m) / Σ_l exp(x[i,l] - m) with m the highest of row i.
func (l *layers) softmax(dst, x kernels.Mat) {
	must(sameShape(dst, x), "cpu: Softmax: shapes do not agree")
	l.each(x.Rows, x.Len(), func(i int) {
		d, xr := dst.RowF32(i), x.RowF32(i)
		sum := l.v.exp(d, xr, l.v.top(xr))
		l.v.scale(d, d, float32(1/sum))
	})
	dst.Buf.Changed()
}

// crossEntropy computes loss[i] = m + log Σ_j exp(logits[i,j] - m) - logits[i,labels[i]] with m the highest of
// row i, or 0 if the label is negative.
func (l *layers) crossEntropy(loss, logits kernels.Mat, labels []int32) {
	must(loss.Rows == 1 && loss.Cols == logits.Rows && len(labels) == logits.Rows,
		"cpu: CrossEntropy: shapes do not agree")
	for _, label := range labels {
		must(int(label) < logits.Cols, "cpu: CrossEntropy: label outside the row")
	}

	out := loss.Buf.F64()[loss.Off:][:loss.Cols]
	l.each(logits.Rows, logits.Len(), func(i int) {
		out[i] = 0
		if labels[i] >= 0 {
			x := logits.RowF32(i)
			m := l.v.top(x)
			out[i] = math.Log(l.v.expSum(x, m)) + (float64(m) - float64(x[labels[i]]))
		}
	})

	loss.Buf.Changed()
}
