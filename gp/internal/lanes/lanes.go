// Package lanes holds the loops over float32 slices that compiled expressions are made of: AVX-512 and AVX2 in
// assembly, and portable Go. All three give the same bits: exponentials and logarithms are computed in float64
// with the same fused multiply-adds and rounded once, sums run over 32 float64 lanes in a fixed order.
//
// Which ones may be used says package isa.
package lanes

import (
	"math"
	"sync"

	"github.com/modelcompress/compress/internal/isa"
)

// Loops is one version of every loop. Sources have at least the length of dst, which may be one of them.
type Loops struct {
	Name string
	// Sqr, Neg, Abs, Log, Exp, Sqrt and Tanh compute dst[i] = f(x[i]) with the guards of package gp.
	Sqr, Neg, Abs, Log, Exp, Sqrt, Tanh func(dst, x []float32)
	// Affine computes dst[i] = (x[i] - sub) / div.
	Affine func(dst, x []float32, sub, div float32)
	// Add, Sub, Mul, Min, Max compute dst[i] = f(x[i], y[i]); NaN wins. Pdiv computes x[i] / (|y[i]| + 1e-8).
	Add, Sub, Mul, Min, Max, Pdiv func(dst, x, y []float32)
	// BF16 and F16 widen x[i] & mask.
	BF16, F16 func(dst []float32, x []uint16, mask uint16)

	// Range returns the extremes, and whether x has a NaN.
	Range func(x []float32) (lo, hi float32, nan bool)
	// SumAbs and SumSq return Σ |x| and Σ x².
	SumAbs, SumSq func(x []float32) float64
	// Moments returns the mean and Σ (x - mean)², exactly for a constant.
	Moments func(x []float32) Moments
	// AddAbs and AddSq compute acc[i] += |x[i]| and x[i]².
	AddAbs, AddSq func(acc []float64, x []float32)
	// Finite reports whether no element is NaN or infinite.
	Finite func(x []float32) bool
}

// Moments is the number of some elements, their mean, and the sum of squared differences from it.
type Moments struct{ N, Mean, Dev float64 }

// Merge takes those of other elements (Chan, Golub and LeVeque 1979). Those of a constant stay exact.
func (a *Moments) Merge(b Moments) {
	if b.N == 0 {
		return
	}
	n, d := a.N+b.N, b.Mean-a.Mean
	a.Mean += d * b.N / n
	a.Dev += b.Dev + d*d*a.N*b.N/n
	a.N = n
}

// eps is what protected division adds to the denominator.
const eps = 1e-8

// Best returns the fastest loops of this processor.
var Best = sync.OnceValue(func() *Loops {
	list := All()
	return list[len(list)-1]
})

// All lists the loops that this processor can run, portable ones first, fastest last.
func All() []*Loops {
	return append([]*Loops{&portable}, vector(isa.Usable(isa.Disabled()))...)
}

// width is how many elements a step of a vector loop covers at most; tails are padded to it.
const width = 32

// fold adds 32 lanes in a fixed tree.
func fold(lane *[width]float64) float64 {
	for n := width / 2; n > 0; n /= 2 {
		for i := range n {
			lane[i] += lane[i+n]
		}
	}
	return lane[0]
}

// around makes moments of sums of differences from c, which should be near the mean: the first element is.
func around(c float64, n int, sum, sq float64) Moments {
	return Moments{float64(n), c + sum/float64(n), max(0, sq-sum*sum/float64(n))}
}

// Coefficients of the polynomials, interpolations at Chebyshev nodes: expP of (e^r - 1) / r on |r| ≤ ln 2 / 2, within
// 2.7e-10 of it; logP of (ln(1+f) - f) / f² on √½ ≤ 1+f ≤ √2, within 2.1e-10 of the logarithm.
var (
	expP = [...]float64{
		1, 0.5000000047146057, 0.16666666719028936, 0.04166635277111221, 0.00833329846980059, 0.0013941118895837,
		0.00019899285575896282,
	}
	logP = [...]float64{
		-0.5000000005545165, 0.333333327929992, -0.24999971698139525, 0.20000057388257333, -0.16669006307254852,
		0.14285624989981874, -0.12432268058299892, 0.1103768925610115, -0.10769472433609277, 0.1058988198636346,
		-0.060209565091962486,
	}
)

const (
	rounder  = 3 << 51            // adding it rounds a float64 to an integer in its low bits
	expLimit = -110               // below, exp is 0 in float32
	halfRoot = 0x3fe6a09e667f3bcd // bits of √½
)

// reduced splits e^y = 2^n · (1 + q) with |q| below ½ or so.
func reduced(y float64) (q, pow float64) {
	t := math.FMA(y, math.Log2E, rounder)
	n := t - rounder
	r := math.FMA(n, -math.Ln2, y)
	p := expP[6]
	for i := 5; i >= 0; i-- {
		p = math.FMA(p, r, expP[i])
	}
	return p * r, math.Float64frombits(math.Float64bits(t)<<52 + 1023<<52)
}

func exp(x float32) float32 {
	if x != x {
		return x
	}
	q, pow := reduced(max(min(float64(x), 100), expLimit))
	return float32(math.FMA(pow, q, pow))
}

// tanh is -E / (2 + E) with E = exp(-2|x|) - 1.
func tanh(x float32) float32 {
	if x != x {
		return x
	}
	q, pow := reduced(-2 * min(math.Abs(float64(x)), 20))
	e := math.FMA(pow, q, pow-1)
	return float32(math.Copysign(e/(2+e), float64(x)))
}

func log(x float32) float32 {
	u := float32(math.Abs(float64(x))) + 0.001
	if !(u <= math.MaxFloat32) {
		return u
	}

	bits := math.Float64bits(float64(u))
	k := (bits - halfRoot + 1023<<52) >> 52
	f := math.Float64frombits(bits-k<<52+1023<<52) - 1
	p := logP[10]
	for i := 9; i >= 0; i-- {
		p = math.FMA(p, f, logP[i])
	}

	p = math.FMA(p, f*f, f)
	return float32(math.FMA(float64(k)-1023, math.Ln2, p))
}
