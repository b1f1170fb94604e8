package quantized

import (
	"math"
	"sync"

	"github.com/modelcompress/compress/safetensors"
)

// Search is how the range of a group of elements is looked for: from First times that of the elements down, in Steps
// steps of First/Grid, by the sum of |value - x|^Power.
type Search struct {
	First float64
	Grid  float64
	Steps int
	Power float64
}

// The searches of llm-compressor's observers "mse", "imatrix_mse" and, for NVFP4, "nvfp4_expanded_mse": its scales may
// be larger than the range of the elements asks for, so that the largest of them is not at 6 but at 4, where the
// numbers lie closer.
var (
	LeastError    = Search{First: 1, Grid: 100, Steps: 20, Power: 2.4}
	WeightedError = Search{First: 1, Grid: 20, Steps: 20, Power: 3}
	WideError     = Search{First: 1.8, Grid: 200, Steps: 111, Power: 2.4}
)

// Group is elements that share a scale.
type Group struct {
	X      []float32
	Weight []float32 // of the errors, one for each element; nil: all weigh the same
	Global float32   // NVFP4: the scale of the matrix; 0: there is none
	// Typed: the elements are numbers of the type, and all that is computed of them is rounded to it, as
	// compressed-tensors does.
	Typed bool
}

// FitLeastError gives the scale and zero point of a group by the range that leaves the least error, the widest of equal
// ones. Other than llm-compressor's observers this sums up in float64, and does not stop when no group of the matrix
// has become better for five steps.
func (n Numbers) FitLeastError(g Group, s Search) (scale float32, zero int) {
	typed := func(v float32) float32 { return v }
	if g.Typed {
		typed = n.round
	}

	low, high := bounds(g.X)
	low = typed(low * float32(s.First))
	high = typed(high * float32(s.First))
	errorOf := powerOf(s.Power)
	least := math.Inf(1)
	last, lastZero := float32(0), 0
	for i := range s.Steps {
		p := float32(1 - float64(i)/s.Grid)
		one, z := n.fitTo(g, typed(low*p), typed(high*p))
		if i > 0 && one == last && z == lastZero {
			continue // scales of few numbers, as E4M3 and powers of two, are the same for several steps
		}
		last, lastZero = one, z

		if e := n.rangeError(g, one, z, errorOf, least); e < least || i == 0 {
			least = e
			scale = one
			zero = z
		}
	}

	return scale, zero
}

// fitTo gives the scale and zero point of elements from lo to hi of a group.
func (n Numbers) fitTo(g Group, lo, hi float32) (scale float32, zero int) {
	if g.Global != 0 {
		return n.FitE4M3(max(-lo, hi), g.Global), 0
	}
	return n.Fit(lo, hi)
}

// rangeError is the error that a scale leaves, or any number beyond least that it exceeds.
func (n Numbers) rangeError(g Group, scale float32, zero int, errorOf *powers, least float64) (sum float64) {
	if g.Global != 0 {
		scale /= g.Global
	}

	const stride = 32
	var near [stride]float32
	for lo := 0; lo < len(g.X); lo += stride {
		x := g.X[lo:min(lo+stride, len(g.X))]
		n.values(near[:], x, scale, zero, g.Typed)
		part := 0.0
		for i, v := range x {
			e := errorOf.of(near[i] - v)
			if g.Weight != nil {
				e *= float64(g.Weight[lo+i])
			}
			part += e
		}
		if sum += part; sum > least {
			return sum
		}
	}
	return sum
}

// values gives the values that elements become.
func (n Numbers) values(dst, x []float32, scale float32, zero int, typed bool) {
	typed = typed && n.DType != safetensors.F32 // all of these are float32 anyway
	switch {
	case typed && n.DType == safetensors.BF16 && !n.Float:
		n.nearBF16(dst, x, scale, float32(zero))
	case typed && n.DType == safetensors.BF16 && zero == 0:
		r := n.Rounder(true)
		for i, v := range x {
			q := min(max(toBF16(v/scale), r.low), r.high)
			dst[i] = toBF16(n.Value(r.float(q), scale, 0))
		}
	case typed:
		for i, v := range x {
			dst[i] = n.round(n.Value(n.CodeRounded(v, scale, zero), scale, zero))
		}
	case n.Float:
		for i, v := range x {
			dst[i] = n.Value(n.Code(v, scale, zero), scale, zero)
		}
	default:
		// What Code and Value do, without the way by bytes: these are most of the time of a search.
		const shift = 3 << 22 // a sum with it has no bits for fractions
		first, last := n.limits()
		z := float32(zero)
		for i, v := range x {
			q := min(max(v/scale+z, first), last)
			dst[i] = (float32(q+shift) - shift - z) * scale
		}
	}
}

// nearBF16 is values for whole numbers and elements of BF16, which most models have.
func (n Numbers) nearBF16(dst, x []float32, scale, zero float32) {
	const shift = 3 << 22
	first, last := n.limits()
	for i, v := range x {
		q := toBF16(v / scale)
		if zero != 0 {
			q = toBF16(q + zero)
		}
		q = min(max(q, first), last)
		dst[i] = toBF16((float32(q+shift) - shift - zero) * scale)
	}
}

// toBF16 rounds a finite number to BF16.
func toBF16(v float32) float32 {
	b := math.Float32bits(v)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// powers gives |x|^p of float32 numbers with a relative error of at most 2e-5, by a table of the powers of their
// exponents and one of those of mantissas, between which it draws lines. Numbers below the normal ones count as 0.
type powers struct {
	exponent [256]float64
	mantissa [257]float64
}

func newPower(p float64) *powers {
	t := &powers{}
	for e := 1; e < len(t.exponent)-1; e++ {
		t.exponent[e] = math.Pow(2, p*float64(e-127))
	}
	t.exponent[255] = math.Inf(1)
	for i := range t.mantissa {
		t.mantissa[i] = math.Pow(1+float64(i)/256, p)
	}
	return t
}

func (t *powers) of(x float32) float64 {
	b := math.Float32bits(x)
	i := b >> 15 & 255
	between := float64(b&0x7fff) / 0x8000
	return t.exponent[b>>23&255] * (t.mantissa[i] + between*(t.mantissa[i+1]-t.mantissa[i]))
}

// powerOf gives the tables of the searches, which are made once.
func powerOf(p float64) *powers {
	switch p {
	case LeastError.Power:
		return leastPower()
	case WeightedError.Power:
		return weightedPower()
	}
	return newPower(p)
}

var (
	leastPower    = sync.OnceValue(func() *powers { return newPower(LeastError.Power) })
	weightedPower = sync.OnceValue(func() *powers { return newPower(WeightedError.Power) })
)
