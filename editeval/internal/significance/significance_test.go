package significance

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

// TestMcNemar: the two tails of a fair coin, counted by hand.
func TestMcNemar(t *testing.T) {
	for _, c := range []struct {
		b, c int
		want float64
	}{{0, 0, 1}, {5, 0, 2.0 / 32}, {1, 4, 12.0 / 32}, {3, 3, 1}} {
		if p := McNemar(c.b, c.c); math.Abs(p-c.want) > 1e-12 {
			t.Errorf("%d, %d: %g, want %g", c.b, c.c, p, c.want)
		}
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
