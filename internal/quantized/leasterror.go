package quantized

import "math"

// The search for the range of a group shrinks it in so many steps of a hundredth, by the sum of |error| to this power.
const (
	rangeSteps = 20
	rangePower = 2.4
)

// FitLeastError gives the scale and zero point of a group of elements, which are numbers of the type: by the range,
// from that of the elements down to 0.81 of it, that leaves the least Σ|value - x|^2.4, the widest of equal ones. It is
// llm-compressor's "mse" observer, but that this one sums up in float64 and does not stop when no group of the matrix
// has become better for five steps.
func (n Numbers) FitLeastError(x []float32) (scale float32, zero int) {
	low, high := bounds(x)
	least := math.Inf(1)
	for i := range rangeSteps {
		p := float32(1 - float64(i)/100)
		s, z := n.Fit(n.round(low*p), n.round(high*p))
		if e := n.rangeError(x, s, z); e < least {
			least = e
			scale = s
			zero = z
		}
	}
	return scale, zero
}

// rangeError is the error that a scale leaves.
func (n Numbers) rangeError(x []float32, scale float32, zero int) (sum float64) {
	for _, v := range x {
		value := n.round(n.Value(n.CodeRounded(v, scale, zero), scale, zero))
		sum += math.Pow(math.Abs(float64(value)-float64(v)), rangePower)
	}
	return sum
}
