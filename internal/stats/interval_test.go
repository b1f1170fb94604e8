package stats

import (
	"math"
	"slices"
	"testing"
)

// TestWilson: values of the formula as printed in textbooks: 8 of 10.
func TestWilson(t *testing.T) {
	low, high := Wilson(0.8, 10)
	if math.Abs(low-0.4902) > 1e-4 || math.Abs(high-0.9433) > 1e-4 { // four printed digits
		t.Errorf("%.4f to %.4f", low, high)
	}
	if low, high = Wilson(1, 4); math.Abs(low-0.5101) > 1e-4 || high != 1 {
		t.Errorf("%.4f to %.4f", low, high)
	}
	if low, high = Wilson(1+1e-15, 4); math.IsNaN(low) || high != 1 {
		t.Errorf("a share rounded above 1: %g to %g", low, high)
	}
	if low, high = Wilson(0, 0); low != 0 || high != 1 {
		t.Errorf("%g to %g", low, high)
	}
}

// TestShare: shares of prompts, averaged by record, stay within 0 and 1 and have a width; a standard error of
// independent answers gives Wilson's own interval.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		mean, stderr float64
		n            int
	}{
		{0.97, 0.05, 3},
		{0.02, 0.02, 2},
		{1, 0, 3},
		{0, 0, 1},
		{0.5, 0, 4},
		{1 + 1e-15, 1e-17, 4},
		{0.9, math.NaN(), 1},
	} {
		low, high := Share(c.mean, c.stderr, c.n)
		if !(low >= 0 && high <= 1 && high-low > 0.01) || low > c.mean || high < min(1, c.mean)-1e-12 {
			t.Errorf("%+v: %g to %g", c, low, high)
		}
	}

	low, high := Share(0.8, math.Sqrt(0.8*0.2/10), 3)
	if a, b := Wilson(0.8, 10); math.Abs(low-a) > 1e-12 || math.Abs(high-b) > 1e-12 { // rounding alone
		t.Errorf("%g to %g, not %g to %g", low, high, a, b)
	}
}

func TestHolm(t *testing.T) {
	got := Holm([]float64{0.04, 0.01, 0.03, 0.5})
	for i, want := range []float64{0.09, 0.04, 0.09, 0.5} {
		if math.Abs(got[i]-want) > 1e-12 {
			t.Errorf("%v", got)
		}
	}
	if len(Holm(nil)) != 0 || !math.IsNaN(Mean(nil)) || !slices.Equal(Holm([]float64{1, 1}), []float64{1, 1}) {
		t.Error("edge cases")
	}
}
