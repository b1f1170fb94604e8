package ref

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// attentionBackward computes, for every query row i and head h with key/value head g = h / (Heads/KVHeads),
//
//	d = Σ_c dout[i, h, c]·out[i, h, c]
//	for j from max(0, Pos+i-Window+1) to Pos+i {
//		s = Scale · Σ_c q[i, h, c]·k[j, g, c]
//		t = Softcap·tanh(s / Softcap)                       // s if Softcap = 0
//		p = exp(t - LSE[i, h])
//		ds = p · (Σ_c dout[i, h, c]·v[j, g, c] - d) · (1 - (t / Softcap)²)
//		for c {
//			dv[j, g, c] += p·dout[i, h, c]
//			dk[j, g, c] += Scale·ds·q[i, h, c]
//			dq[i, h, c] += Scale·ds·k[j, g, c]
//		}
//	}
//
// from zero in the channels of the heads.
func attentionBackward(dq, dk, dv, dout, q, k, v, out kernels.Mat, a kernels.Attention) {
	a = attentionDefaults(out, q, k, v, a)
	need(sameShape(dq, q) && sameShape(dk, k) && sameShape(dv, v) && sameShape(dout, out),
		"ref: AttentionBackward: shapes do not agree")
	need(!a.LSE.IsZero() && a.LSE.Rows == q.Rows && a.LSE.Cols == a.Heads,
		"ref: AttentionBackward: LSE is not [tq, Heads]")
	for g := range a.KVHeads {
		attentionBackwardGroup(dq, dk, dv, dout, q, k, v, out, a, g)
	}

	dq.Buf.Changed()
	dk.Buf.Changed()
	dv.Buf.Changed()
}

// attentionBackwardGroup does the heads of key/value head g.
func attentionBackwardGroup(dq, dk, dv, dout, q, k, v, out kernels.Mat, a kernels.Attention, g int) {
	d := a.HeadDim
	rep := a.Heads / a.KVHeads
	ko := g * a.KVHeadStride
	kSum, vSum := make([]float64, k.Rows*d), make([]float64, v.Rows*d)
	for i := range q.Rows {
		hi := a.Pos + i + 1
		lo := 0
		if a.Window > 0 {
			lo = max(0, hi-a.Window)
		}

		for h := g * rep; h < (g+1)*rep; h++ {
			qo := h * a.QHeadStride
			qr, gr := q.RowF32(i)[qo:qo+d], dout.RowF32(i)[h*d:(h+1)*d]
			mean, qSum := dot(gr, out.RowF32(i)[h*d:(h+1)*d]), make([]float64, d)
			for j := lo; j < hi; j++ {
				kr := k.RowF32(j)[ko : ko+d]
				t := capped(float64(a.Scale)*dot(qr, kr), float64(a.Softcap))
				p := math.Exp(t - float64(a.LSE.RowF32(i)[h]))
				ds := float64(a.Scale) * p * (dot(gr, v.RowF32(j)[ko:ko+d]) - mean)
				if a.Softcap != 0 {
					ds *= 1 - t/float64(a.Softcap)*(t/float64(a.Softcap))
				}

				for c := range d {
					vSum[j*d+c] += p * float64(gr[c])
					kSum[j*d+c] += ds * float64(qr[c])
					qSum[c] += ds * float64(kr[c])
				}
			}

			round(dq.RowF32(i)[qo:qo+d], qSum)
		}
	}

	for j := range k.Rows {
		round(dk.RowF32(j)[ko:ko+d], kSum[j*d:(j+1)*d])
	}
	for j := range v.Rows {
		round(dv.RowF32(j)[ko:ko+d], vSum[j*d:(j+1)*d])
	}
}
