package ref

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// attention computes, for every query row i and head h with key/value head g = h / (Heads/KVHeads),
//
//	for j from max(0, Pos+i-Window+1) to Pos+i {
//		s[j] = Scale · Σ_c q[i, h, c]·k[j, g, c]
//		s[j] = Softcap·tanh(s[j] / Softcap)           // if Softcap ≠ 0
//	}
//	p = softmax(s)
//	LSE[i, h] = log Σ_j exp(s[j])                         // if present
//	for c { dst[i, h, c] = Σ_j p[j]·v[j, g, c] }
func attention(dst, q, k, v kernels.Mat, a kernels.Attention) {
	a = attentionDefaults(dst, q, k, v, a)
	score := make([]float64, a.Pos+q.Rows)
	sum := make([]float64, a.HeadDim)
	for i := range q.Rows {
		hi := a.Pos + i + 1
		lo := 0
		if a.Window > 0 {
			lo = max(0, hi-a.Window)
		}

		for h := range a.Heads {
			qo, ko := h*a.QHeadStride, h/(a.Heads/a.KVHeads)*a.KVHeadStride
			qr := q.RowF32(i)[qo : qo+a.HeadDim]
			for j := lo; j < hi; j++ {
				score[j] = capped(float64(a.Scale)*dot(qr, k.RowF32(j)[ko:ko+a.HeadDim]), float64(a.Softcap))
			}

			lse := softmax64(score[lo:hi])
			if !a.LSE.IsZero() {
				a.LSE.RowF32(i)[h] = float32(lse)
			}

			clear(sum)

			for j := lo; j < hi; j++ {
				for c, u := range v.RowF32(j)[ko : ko+a.HeadDim] {
					sum[c] += score[j] * float64(u)
				}
			}

			round(dst.RowF32(i)[h*a.HeadDim:(h+1)*a.HeadDim], sum)
		}
	}

	dst.Buf.Changed()
	if !a.LSE.IsZero() {
		a.LSE.Buf.Changed()
	}
}

// attentionDefaults fills the head strides in and checks the shapes.
func attentionDefaults(dst, q, k, v kernels.Mat, a kernels.Attention) kernels.Attention {
	if a.QHeadStride == 0 {
		a.QHeadStride = a.HeadDim
	}
	if a.KVHeadStride == 0 {
		a.KVHeadStride = a.HeadDim
	}

	need(a.Heads > 0 && a.KVHeads > 0 && a.Heads%a.KVHeads == 0,
		"ref: Attention: heads are not a multiple of key/value heads")
	need(dst.Rows == q.Rows && dst.Cols == a.Heads*a.HeadDim, "ref: Attention: dst is not [tq, Heads·HeadDim]")
	need((a.Heads-1)*a.QHeadStride+a.HeadDim <= q.Cols, "ref: Attention: q is narrower than its heads")
	need((a.KVHeads-1)*a.KVHeadStride+a.HeadDim <= min(k.Cols, v.Cols),
		"ref: Attention: k or v is narrower than its heads")
	need(a.Pos >= 0 && a.Window >= 0 && a.Pos+q.Rows <= min(k.Rows, v.Rows),
		"ref: Attention: fewer keys than positions")
	need(a.LSE.IsZero() || (a.LSE.Rows == q.Rows && a.LSE.Cols == a.Heads), "ref: Attention: LSE is not [tq, Heads]")

	return a
}

func dot(a, b []float32) float64 {
	s := 0.0
	for i, v := range a {
		s += float64(v) * float64(b[i])
	}
	return s
}

// capped is cap·tanh(s/cap), or s when cap is 0.
func capped(s, cap float64) float64 {
	if cap == 0 {
		return s
	}
	return cap * math.Tanh(s/cap)
}

// softmax64 replaces s by exp(s - max s) / Σ exp(s - max s) and returns log Σ exp(s).
func softmax64(s []float64) (lse float64) {
	top := math.Inf(-1)
	for _, v := range s {
		top = max(top, v)
	}

	sum := 0.0
	for j, v := range s {
		s[j] = math.Exp(v - top)
		sum += s[j]
	}

	for j := range s {
		s[j] /= sum
	}

	return top + math.Log(sum)
}

// round computes dst[j] = float32(x[j]).
func round(dst []float32, x []float64) {
	for j, v := range x {
		dst[j] = float32(v)
	}
}
