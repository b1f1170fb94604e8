package quantized

import (
	"math"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// TestHalfQuadratic: zero points as HQQ's formula has them, by torch; what is left with whole ones is never more than
// by the range alone, and less for most groups.
func TestHalfQuadratic(t *testing.T) {
	f, err := safetensors.Open("testdata/hqq.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	const group = 32
	x := numbersOf(t, f, "x")
	step := numbersOf(t, f, "step")
	zero := numbersOf(t, f, "zero")
	left := numbersOf(t, f, "error")
	n := Numbers{Bits: 4, DType: safetensors.F32}
	same, better := 0, 0
	for i := range step {
		part := x[i*group:][:group]
		h := halves{n: n, x: part, value: make([]float32, group), code: make([]float32, group)}
		low, _ := bounds(part)
		z := h.zeroPoint(float64(step[i]), -8-float64(min(low, 0))/float64(step[i]))
		// A weight between two codes may go to the other one in float32, from where the rounds go on differently.
		if math.Abs(z+8-float64(zero[i])) < 1e-4 {
			same++
		} else if e := h.round(float64(step[i]), z); e > 1.02*float64(left[i]) {
			t.Errorf("group %d: zero point %g and an error of %g, by the formula %g and %g", i, z+8, e, zero[i],
				left[i])
		}

		wide, at := n.Fit(bounds(part))
		whole := h.round(float64(wide), float64(at))
		scale, point := n.FitHalfQuadratic(part)
		if e := h.round(float64(scale), float64(point)); e > whole {
			t.Errorf("group %d: an error of %g, by the range alone %g", i, e, whole)
		} else if e < 0.99*whole {
			better++
		}
	}
	if same < len(step)*9/10 || better < len(step)/2 {
		t.Errorf("of %d groups %d have the same zero points, %d are better than by their ranges", len(step), same,
			better)
	}

	for name, part := range map[string][]float32{
		"zeros": make([]float32, 32), "constant": {0.3, 0.3, 0.3, 0.3}, "two": {-1e-30, 1e30}, "one": {7},
	} {
		scale, point := n.FitHalfQuadratic(part)
		if !(scale > 0) || math.IsInf(float64(scale), 0) || point < -8 || point > 7 {
			t.Errorf("%s: scale %g, zero point %d", name, scale, point)
		}
	}
}
