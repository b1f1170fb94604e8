package cpu

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// portableGradLoops are the vector loops of gradients in plain Go.
func portableGradLoops() *gradLoops {
	v := &gradLoops{
		softcap: softcapGradGo, softmax: softmaxGradGo, dot: dotGo, square: squareGo, sum: sumIntoGo,
		sumFour: sumFourIntoGo,
		moments: momentsGo, norm: normGradGo, scores: scoresGradGo, lanes: portableLanes,
	}

	for f, fn := range map[kernels.Activation]func(x float32) (y, slope float32){
		kernels.SiLU: siluGrad, kernels.GELU: geluGrad, kernels.GELUTanh: geluTanhGrad, kernels.ReLU: reluGrad,
	} {
		v.act[f] = func(dx, dy, x []float32) {
			for i, u := range x {
				_, slope := fn(u)
				dx[i] = dy[i] * slope
			}
		}

		v.gate[f] = func(dg, du, dy, g, u []float32) {
			for i, a := range g {
				y, slope := fn(a)
				dg[i], du[i] = dy[i]*u[i]*slope, dy[i]*y
			}
		}
	}

	return v
}

// The functions below return an activation and its derivative. Beyond the clamps the derivative has reached its limit.

func siluGrad(x float32) (y, slope float32) {
	v := float64(x)
	p := 1 / (1 + math.Exp(-v))
	c := clamp(v, 700)
	return float32(v * p), float32(p + c*p*p*math.Exp(-c))
}

func geluGrad(x float32) (y, slope float32) {
	v := float64(x)
	p := 0.5 * math.Erfc(-v/math.Sqrt2)
	c := clamp(v, 40)
	return float32(v * p), float32(p + c*math.Exp(-c*c/2)/math.Sqrt(2*math.Pi))
}

func geluTanhGrad(x float32) (y, slope float32) {
	const k = 2 * 0.7978845608028654 // 2·√(2/π)
	v := float64(x)
	c := clamp(v, 20)
	e := math.Exp(-k * (c + 0.044715*c*c*c))
	p := 1 / (1 + e)
	return geluTanh(x), float32(p + c*k*(1+3*0.044715*c*c)*e*p*p)
}

func reluGrad(x float32) (y, slope float32) {
	if x <= 0 {
		return 0, 0
	}
	return x, 1
}

// clamp is x within ±limit; NaN stays NaN.
func clamp(x, limit float64) float64 { return min(max(x, -limit), limit) }

func softcapGradGo(dx, dy, y []float32, r float32) {
	for i, v := range y {
		t := v * r
		dx[i] = dy[i] * (1 - t*t)
	}
}

func softmaxGradGo(dx, dy, y []float32, sum float32) {
	for i, v := range y {
		dx[i] = v * (dy[i] - sum)
	}
}

func dotGo(x, y []float32) float64 {
	s := 0.0
	for i, v := range x {
		s += float64(v) * float64(y[i])
	}
	return s
}

func squareGo(acc, x []float32, scale float32) {
	for i, v := range x {
		acc[i] += scale * v * (scale * v)
	}
}

func sumIntoGo(acc []float64, x []float32) {
	for i, v := range x {
		acc[i] += float64(v)
	}
}

func sumFourIntoGo(acc []float64, x []float32, stride int) {
	for r := range 4 {
		sumIntoGo(acc, x[r*stride:][:len(acc)])
	}
}

func momentsGo(out []float64, x, dy, w []float32, m0, m1, r, one float32) {
	g, gn := 0.0, 0.0
	for i, v := range x {
		u := float64(dy[i]) * float64(w[i]+one)
		g += u
		gn += u * float64((v-m0-m1)*r)
	}
	out[0], out[1] = g, gn
}

func normGradGo(dx, dw, dy, x, w []float32, m0, m1, r, one, a, b float32) {
	for i, v := range x {
		n := (v - m0 - m1) * r
		dx[i] += r * (dy[i]*(w[i]+one) - a - n*b)
		dw[i] += dy[i] * n
	}
}

func scoresGradGo(s, ds, lse, delta []float32, r float32) {
	n := len(s) / max(1, len(lse))
	for i, l := range lse {
		for j := i * n; j < (i+1)*n; j++ {
			p, t := float32(math.Exp(float64(s[j]-l))), s[j]*r
			if !(t >= -1) {
				t = -1
			}
			s[j], ds[j] = p, p*(ds[j]-delta[i])*(1-t*t)
		}
	}
}

// portableLanes are the loops over lanes in plain Go.
var portableLanes = laneLoops{
	n: portableWidth, load: laneLoadGo, tile: laneTileGo, mask: laneMaskGo,
	store: laneStoreGo,
}

const portableWidth = 16

func laneLoadGo(dst, x []float32, at []int32, channels int, scale float32) {
	for c := range channels {
		for lane, o := range at {
			dst[c*portableWidth+lane] = x[int(o)+c] * scale
		}
	}
}

func laneTileGo(dst, a, b, carry []float32, rows, k, row, step int) {
	for r := range rows {
		d := (*[portableWidth]float32)(dst[r*portableWidth:])
		var sum [portableWidth]float32
		for lane, c := range carry { // none: the old contents do not count
			sum[lane] = d[lane] * c
		}

		for p := range k {
			u, l := a[r*row+p*step], (*[portableWidth]float32)(b[p*portableWidth:])
			for lane, v := range l {
				sum[lane] += u * v
			}
		}

		*d = sum
	}
}

func laneMaskGo(s []float32, lo, hi []int32, j int) {
	for i := range s {
		if lane, p := i%portableWidth, j+i/portableWidth; p < int(lo[lane]) || p >= int(hi[lane]) {
			s[i] = float32(math.Inf(-1))
		}
	}
}

func laneStoreGo(dst, x, scale []float32, at []int32, channels int) {
	for lane, o := range at {
		for c := range channels {
			dst[int(o)+c] = x[c*portableWidth+lane] * scale[lane]
		}
	}
}
