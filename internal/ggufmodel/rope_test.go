package ggufmodel

import (
	"math"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/lm/arch"
)

// TestFit: parameters are found that give the factors of any rotation of Llama 3's kind, to within the rounding of a
// float32, whether they are those that were used or others of the same effect.
func TestFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pairs := rapid.SampledFrom([]int{16, 32, 64}).Draw(t, "pairs")
		used := &arch.Rope{
			Type: "llama3", Dim: 2 * pairs,
			Theta:    rapid.SampledFrom([]float64{1e4, 5e5, 1e6}).Draw(t, "theta"),
			Factor:   float64(rapid.IntRange(2, 64).Draw(t, "factor")),
			LowFreq:  1,
			HighFreq: float64(rapid.IntRange(2, 8).Draw(t, "high")),
			Original: rapid.SampledFrom([]int{2048, 4096, 8192, 32768}).Draw(t, "original"),
		}

		want := factorsOf(used)
		found, ok := fit(want, used.Theta, 131072)
		if !ok {
			t.Fatalf("nothing found for %v", want)
		}
		for i, f := range factorsOf(found) {
			if math.Abs(f-want[i]) > 2e-6*used.Factor*want[i] {
				t.Fatalf("factor %d is %g, expected %g", i, f, want[i])
			}
		}
	})
}

// factorsOf computes in float32 what a converter writes.
func factorsOf(r *arch.Rope) []float64 {
	plain, _ := (&arch.Rope{Type: "default", Dim: r.Dim, Theta: r.Theta}).InvFreq(0)
	list := make([]float64, len(plain))
	for i, f := range plain {
		wave := float32(2*math.Pi) / float32(f)
		original := float32(r.Original)
		low, high := float32(r.LowFreq), float32(r.HighFreq)
		x := float32(1)
		switch {
		case wave < original/high:
		case wave > original/low:
			x = float32(r.Factor)
		default:
			s := (original/wave - low) / (high - low)
			x = 1 / ((1-s)/float32(r.Factor) + s)
		}
		list[i] = float64(x)
	}
	return list
}

// TestFraction: the fraction of rotated channels gives their number again.
func TestFraction(t *testing.T) {
	for whole := int64(2); whole <= 300; whole++ {
		for part := int64(2); part <= whole; part += 2 {
			f, err := strconv.ParseFloat(fraction(part, whole), 64)
			if err != nil || int64(float64(whole)*f) != part || f > 1 {
				t.Fatalf("%d of %d: %g", part, whole, f)
			}
		}
	}
}

// TestTenfold: the tenth of the number, rounded to float32, is what the file has.
func TestTenfold(t *testing.T) {
	for _, x := range []float64{0.707, 1, 0.6, 0.8, 1.25, 0.1, 3} {
		stored := float64(float32(0.1 * x))
		if y, err := strconv.ParseFloat(tenfold(stored), 64); err != nil || y != x {
			t.Errorf("%g became %s", x, tenfold(stored))
		}
	}
}
