package cpu

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// portableLoops are the vector loops in plain Go.
func portableLoops() *loops {
	v := &loops{
		add: addGo, scale: scaleGo,
		widenBF16: widenBF16Go, widenF16: widenF16Go, narrowBF16: narrowBF16Go, narrowF16: narrowF16Go,
		tanh: tanhGo, sum: sumGo, sumSq: sumSqGo, sumSqDev: sumSqDevGo, norm: normGo, affine: affineGo,
		top: topGo, exp: expGo, expSum: expSumGo, rope: ropeGo, ropePairs: ropePairsGo, dots: dotsGo, weigh: weighGo,
	}

	for f, fn := range map[kernels.Activation]func(float32) float32{
		kernels.SiLU: silu, kernels.GELU: gelu, kernels.GELUTanh: geluTanh, kernels.ReLU: relu,
	} {
		v.act[f] = func(dst, x []float32) {
			for i, u := range x {
				dst[i] = fn(u)
			}
		}

		v.gate[f] = func(dst, g, u []float32) {
			for i, a := range g {
				dst[i] = fn(a) * u[i]
			}
		}
	}

	return v
}

func silu(x float32) float32 { return x / (1 + float32(math.Exp(-float64(x)))) }

func gelu(x float32) float32 { return float32(float64(x) * 0.5 * math.Erfc(-float64(x)/math.Sqrt2)) }

// geluTanh uses ½(1 + tanh(u)) = 1/(1 + exp(-2u)).
func geluTanh(x float32) float32 {
	v := float64(x)
	return float32(v / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))))
}

func relu(x float32) float32 { return max(x, 0) }

func addGo(dst, a, b []float32, scale float32) {
	for i, v := range a {
		dst[i] = v + scale*b[i]
	}
}

func scaleGo(dst, x []float32, scale float32) {
	for i, v := range x {
		dst[i] = v * scale
	}
}

func widenBF16Go(dst []float32, x []uint16) {
	for i, v := range x {
		dst[i] = kernels.FromBF16(v)
	}
}

func widenF16Go(dst []float32, x []uint16) {
	for i, v := range x {
		dst[i] = kernels.FromF16(v)
	}
}

func narrowBF16Go(dst []uint16, x []float32) {
	for i, v := range x {
		dst[i] = kernels.ToBF16(v)
	}
}

func narrowF16Go(dst []uint16, x []float32) {
	for i, v := range x {
		dst[i] = kernels.ToF16(v)
	}
}

func tanhGo(dst, x []float32, pre, post float32) {
	for i, v := range x {
		dst[i] = post * float32(math.Tanh(float64(v*pre)))
	}
}

func sumGo(x []float32) float64 {
	s := 0.0
	for _, v := range x {
		s += float64(v)
	}
	return s
}

func sumSqGo(x []float32) float64 {
	s := 0.0
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	return s
}

func sumSqDevGo(x []float32, mean float64) float64 {
	s := 0.0
	for _, v := range x {
		s += (float64(v) - mean) * (float64(v) - mean)
	}
	return s
}

func normGo(dst, x, w []float32, r, one float32) {
	for i, v := range x {
		dst[i] = v * r * (w[i] + one)
	}
}

func affineGo(dst, x, w, b []float32, m0, m1, r float32) {
	for i, v := range x {
		dst[i] = (v-m0-m1)*r*w[i] + b[i]
	}
}

func topGo(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func expGo(dst, x []float32, top float32) float64 {
	s := 0.0
	for i, v := range x {
		e := float32(math.Exp(float64(v - top)))
		dst[i] = e
		s += float64(e)
	}
	return s
}

func expSumGo(x []float32, top float32) float64 {
	s := 0.0
	for _, v := range x {
		s += math.Exp(float64(v - top))
	}
	return s
}

func ropeGo(x, cos, sin []float32, heads, stride int) {
	for h := range heads {
		a := x[h*stride:][:2*len(cos)]
		b := a[len(cos):]
		for i, c := range cos {
			a[i], b[i] = a[i]*c-b[i]*sin[i], b[i]*c+a[i]*sin[i]
		}
	}
}

func ropePairsGo(x, cos, sin []float32, heads, stride int) {
	for h := range heads {
		p := x[h*stride:][:2*len(cos)]
		for i, c := range cos {
			a, b := p[2*i], p[2*i+1]
			p[2*i], p[2*i+1] = a*c-b*sin[i], b*c+a*sin[i]
		}
	}
}

func dotsGo(s, q, k []float32, stride int) {
	for j := range s {
		kr := k[j*stride:][:len(q)]
		var s0, s1, s2, s3 float32
		c := 0
		for ; c+4 <= len(q); c += 4 {
			s0 += q[c] * kr[c]
			s1 += q[c+1] * kr[c+1]
			s2 += q[c+2] * kr[c+2]
			s3 += q[c+3] * kr[c+3]
		}

		for ; c < len(q); c++ {
			s0 += q[c] * kr[c]
		}

		s[j] = (s0 + s1) + (s2 + s3)
	}
}

func weighGo(o, p, v []float32, stride int, carry float32) {
	scaleGo(o, o, carry)
	for j, w := range p {
		for c, u := range v[j*stride:][:len(o)] {
			o[c] += w * u
		}
	}
}
