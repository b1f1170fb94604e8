package lanes

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

var portable = Loops{
	Name: "portable",
	Sqr:  each(func(x float32) float32 { return x * x }),
	Neg:  each(func(x float32) float32 { return -x }),
	Abs:  each(func(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }),
	Log:  each(log),
	Exp:  each(exp),
	Sqrt: each(func(x float32) float32 { return float32(math.Sqrt(math.Abs(float64(x)))) }),
	Tanh: each(tanh),
	Affine: func(dst, x []float32, sub, div float32) {
		for i := range dst {
			dst[i] = (x[i] - sub) / div
		}
	},
	Add: pairs(func(x, y float32) float32 { return x + y }),
	Sub: pairs(func(x, y float32) float32 { return x - y }),
	Mul: pairs(func(x, y float32) float32 { return x * y }),
	Min: pairs(func(x, y float32) float32 {
		switch {
		case x != x || y != y:
			return x + y
		case x < y:
			return x
		}
		return y
	}),
	Max: pairs(func(x, y float32) float32 {
		switch {
		case x != x || y != y:
			return x + y
		case x > y:
			return x
		}
		return y
	}),
	Pdiv: pairs(func(x, y float32) float32 { return x / (float32(math.Abs(float64(y))) + eps) }),
	BF16: func(dst []float32, x []uint16, mask uint16) {
		for i := range dst {
			dst[i] = kernels.FromBF16(x[i] & mask)
		}
	},
	F16: func(dst []float32, x []uint16, mask uint16) {
		for i := range dst {
			dst[i] = kernels.FromF16(x[i] & mask)
		}
	},
	Range:  extremes,
	SumAbs: total(func(acc, x float64) float64 { return acc + math.Abs(x) }),
	SumSq:  total(func(acc, x float64) float64 { return acc + x*x }), // x² is exact
	Moments: func(x []float32) Moments {
		var sum, sq [width]float64
		n := len(x) / width * width
		for at := 0; at < n; at += width {
			for i, v := range x[at : at+width] {
				d := float64(v) - float64(x[0])
				sum[i] += d
				sq[i] = math.FMA(d, d, sq[i])
			}
		}

		return momentsTail(&sum, &sq, x, n)
	},
	AddAbs: func(acc []float64, x []float32) {
		for i := range acc {
			acc[i] += math.Abs(float64(x[i]))
		}
	},
	AddSq: func(acc []float64, x []float32) {
		for i := range acc {
			acc[i] += float64(x[i]) * float64(x[i])
		}
	},
	Finite: func(x []float32) bool {
		for _, v := range x {
			if v-v != 0 {
				return false
			}
		}
		return true
	},
}

func each(f func(float32) float32) func(dst, x []float32) {
	return func(dst, x []float32) {
		for i := range dst {
			dst[i] = f(x[i])
		}
	}
}

func pairs(f func(x, y float32) float32) func(dst, x, y []float32) {
	return func(dst, x, y []float32) {
		for i := range dst {
			dst[i] = f(x[i], y[i])
		}
	}
}

// total sums over 32 lanes; what does not fill them all is added behind, one by one.
func total(add func(acc, x float64) float64) func(x []float32) float64 {
	return func(x []float32) float64 {
		var lane [width]float64
		for ; len(x) >= width; x = x[width:] {
			for i := range lane {
				lane[i] = add(lane[i], float64(x[i]))
			}
		}
		return tail(fold(&lane), x, add)
	}
}

// tail continues a sum one element at a time.
func tail(sum float64, x []float32, add func(acc, x float64) float64) float64 {
	for _, v := range x {
		sum = add(sum, float64(v))
	}
	return sum
}

// momentsTail folds the lanes of the first n elements and adds the others one by one.
func momentsTail(sum, sq *[width]float64, x []float32, n int) Moments {
	if len(x) == 0 {
		return Moments{}
	}

	c := float64(x[0])
	s := fold(sum)
	q := fold(sq)
	for _, v := range x[n:] {
		d := float64(v) - c
		s += d
		q = math.FMA(d, d, q)
	}

	return around(c, len(x), s, q)
}

func extremes(x []float32) (lo, hi float32, nan bool) {
	lo, hi = float32(math.Inf(1)), float32(math.Inf(-1))
	for _, v := range x {
		nan = nan || v != v
		lo, hi = min(lo, v), max(hi, v)
	}
	return lo, hi, nan
}
