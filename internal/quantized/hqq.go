package quantized

import (
	"math"
	"sync"
)

// The constants of HQQ (Badri and Shaji, 2023, Half-Quadratic Quantization): errors count by |e|^0.7, the weight of the
// second half of the problem grows from 10 by a hundredth, and no more than 20 rounds are gone.
const (
	hqqNorm   = 0.7
	hqqBeta   = 10
	hqqGrowth = 1.01
	hqqRounds = 20
)

// FitHalfQuadratic gives the scale and zero point of elements by HQQ: by the zero point z with which a scale s, that of
// their range, leaves the least of Σ|x - x̂|^0.7, found by halves. By turns
//
//	q = clamp(round(x/s + z)),  x̂ = (q - z)·s
//	e = shrink(x - x̂, β),       shrink(v) = sign(v)·max(0, |v| - |v|^(0.7-1)/β)
//	z = mean(q - (x - e)/s)
//
// until the mean of |x - x̂| grows. There z is any number. Here it is a whole one in the end, and rounding it may
// cost more than was won; so the same halves go on with z as it is rounded and s for unknown,
//
//	s = Σ(q - z)·(x - e)/Σ(q - z)²
//
// and of all scales and zero points that the format can hold, those of the range among them, the one with the least
// mean of |x - x̂| is taken. Numbers are whole and have zero points.
func (n Numbers) FitHalfQuadratic(x []float32) (scale float32, zero int) {
	low, high := bounds(x)
	scale, zero = n.Fit(low, high)
	h := halves{n: n, x: x, value: make([]float32, len(x)), code: make([]float32, len(x))}
	first, last := n.limits()

	// The zero point of the range before it was rounded.
	z := h.zeroPoint(float64(scale), min(max(float64(first)-float64(min(low, 0))/float64(scale), float64(first)),
		float64(last)))
	best := h.round(float64(scale), float64(zero))
	whole := min(max(math.RoundToEven(z), float64(first)), float64(last))
	s := float64(scale)
	for k := range hqqRounds {
		e := h.round(s, whole)
		if e < best {
			best = e
			scale = float32(s)
			zero = int(whole)
		} else if k > 0 {
			break
		}

		next := float64(n.round(float32(h.scale(s, whole, hqqBeta*math.Pow(hqqGrowth, float64(k))))))
		if !(next > 0) || math.IsInf(next, 0) {
			break
		}
		s = next
	}
	return scale, zero
}

// halves are elements with what they become.
type halves struct {
	n           Numbers
	x           []float32
	code, value []float32
}

// round computes codes and values, and gives the mean error.
func (h *halves) round(s, z float64) float64 {
	first, last := h.n.limits()
	const shift = 3 << 22
	scale := float32(s)
	by := float32(1 / s)
	zero := float32(z)
	sum := 0.0
	for i, v := range h.x {
		q := min(max(v*by+zero, first), last)
		q = float32(q+shift) - shift
		h.code[i] = q
		h.value[i] = (q - zero) * scale
		sum += math.Abs(float64(v) - float64(h.value[i]))
	}
	return sum / float64(len(h.x))
}

// zeroPoint finds the zero point of a scale, any number.
func (h *halves) zeroPoint(s, z float64) float64 {
	least := math.Inf(1)
	best := z
	for k := range hqqRounds {
		e := h.round(s, z)
		if e >= least {
			break
		}
		least = e
		best = z

		beta := hqqBeta * math.Pow(hqqGrowth, float64(k))
		sum := 0.0
		for i, v := range h.x {
			sum += float64(h.code[i]) - float64(v-h.shrunk(i, beta))/s
		}
		z = sum / float64(len(h.x))
	}
	return best
}

// scale finds the scale that goes with the codes and a zero point.
func (h *halves) scale(s, z, beta float64) float64 {
	product := 0.0
	square := 0.0
	for i, v := range h.x {
		q := float64(h.code[i]) - z
		product += q * float64(v-h.shrunk(i, beta))
		square += q * q
	}
	if square == 0 {
		return s
	}
	return product / square
}

// shrunk is the error of an element, less what the second half takes from it.
func (h *halves) shrunk(i int, beta float64) float32 {
	e := h.x[i] - h.value[i]
	size := float64(max(e, -e))
	if size -= hqqPower().of(e) / beta; size <= 0 {
		return 0
	}
	return float32(math.Copysign(size, float64(e)))
}

var hqqPower = sync.OnceValue(func() *powers { return newPower(hqqNorm - 1) })
