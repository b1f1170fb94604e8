package ref

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// function is the activation in float64.
func function(f kernels.Activation) func(x float64) float64 {
	switch f {
	case kernels.SiLU:
		return func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	case kernels.GELU:
		return func(x float64) float64 { return x * 0.5 * math.Erfc(-x/math.Sqrt2) }
	case kernels.GELUTanh:
		return func(x float64) float64 {
			return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		}
	case kernels.ReLU:
		return func(x float64) float64 { return max(x, 0) }
	}

	panic("ref: unknown activation")
}

// activate computes
//
//	for i, j { dst[i,j] = f(x[i,j]) }
func activate(dst, x kernels.Mat, f kernels.Activation) {
	need(sameShape(dst, x), "ref: Activate: shapes do not agree")
	fn := function(f)
	for i := range x.Rows {
		d := dst.RowF32(i)
		for j, v := range x.RowF32(i) {
			d[j] = float32(fn(float64(v)))
		}
	}
	dst.Buf.Changed()
}

// gate computes
//
//	for i, j { dst[i,j] = f(gate[i,j]) · up[i,j] }
func gate(dst, gate, up kernels.Mat, f kernels.Activation) {
	need(sameShape(dst, gate, up), "ref: Gate: shapes do not agree")
	fn := function(f)
	for i := range dst.Rows {
		d, u := dst.RowF32(i), up.RowF32(i)
		for j, v := range gate.RowF32(i) {
			d[j] = float32(fn(float64(v)) * float64(u[j]))
		}
	}
	dst.Buf.Changed()
}

// add computes
//
//	for i, j { dst[i,j] = a[i,j] + scale·b[i,j] }
func add(dst, a, b kernels.Mat, scale float32) {
	need(sameShape(dst, a, b), "ref: Add: shapes do not agree")
	for i := range dst.Rows {
		d, u := dst.RowF32(i), b.RowF32(i)
		for j, v := range a.RowF32(i) {
			d[j] = float32(float64(v) + float64(scale)*float64(u[j]))
		}
	}
	dst.Buf.Changed()
}

// softcap computes
//
//	for i, j { dst[i,j] = cap·tanh(x[i,j] / cap) }
func softcap(dst, x kernels.Mat, cap float32) {
	need(sameShape(dst, x), "ref: Softcap: shapes do not agree")
	need(cap != 0, "ref: Softcap: cap is 0")
	for i := range x.Rows {
		d := dst.RowF32(i)
		for j, v := range x.RowF32(i) {
			d[j] = float32(capped(float64(v), float64(cap)))
		}
	}
	dst.Buf.Changed()
}

// softmax computes
//
//	for i, j { dst[i,j] = exp(x[i,j] - max_l x[i,l]) / Σ_l exp(x[i,l] - max_l x[i,l]) }
func softmax(dst, x kernels.Mat) {
	need(sameShape(dst, x), "ref: Softmax: shapes do not agree")
	p := make([]float64, x.Cols)
	for i := range x.Rows {
		for j, v := range x.RowF32(i) {
			p[j] = float64(v)
		}
		softmax64(p)
		round(dst.RowF32(i), p)
	}

	dst.Buf.Changed()
}

// crossEntropy computes
//
//	for i {
//		m = max_j logits[i,j]
//		loss[i] = m + log Σ_j exp(logits[i,j] - m) - logits[i,labels[i]]    // 0 if labels[i] < 0
//	}
func crossEntropy(loss, logits kernels.Mat, labels []int32) {
	need(loss.Rows == 1 && loss.Cols == logits.Rows && len(labels) == logits.Rows,
		"ref: CrossEntropy: shapes do not agree")
	out := loss.Buf.F64()[loss.Off:]
	for i, label := range labels {
		out[i] = 0
		if label < 0 {
			continue
		}

		need(int(label) < logits.Cols, "ref: CrossEntropy: label outside the row")
		l := logits.RowF32(i)
		top := math.Inf(-1)
		for _, v := range l {
			top = max(top, float64(v))
		}

		sum := 0.0
		for _, v := range l {
			sum += math.Exp(float64(v) - top)
		}

		out[i] = math.Log(sum) + (top - float64(l[label]))
	}

	loss.Buf.Changed()
}
