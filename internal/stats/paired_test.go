package stats

import (
	"math"
	"testing"

	"github.com/modelcompress/compress/internal/pyrandom"
)

// TestMcNemar: probabilities of the binomial distribution by hand, and of SciPy 1.17.1: binomtest(min(b, c),
// b+c, 0.5).pvalue.
func TestMcNemar(t *testing.T) {
	for _, c := range []struct {
		b, c int
		want float64
	}{
		{0, 0, 1},
		{5, 0, 2.0 / 32},
		{1, 4, 12.0 / 32},
		{3, 3, 1},
		{5, 5, 1},
		{1, 9, 0.021484375},
		{0, 6, 0.03125},
		{10, 2, 0.03857421875},
		{12, 3, 0.03515625},
		{40, 61, 0.046044066929342785},
		{250, 250, 1},
		{1000, 1100, 0.03072070786424249},
	} {
		for _, p := range []float64{McNemar(c.b, c.c), McNemar(c.c, c.b)} {
			if math.Abs(p-c.want) > 1e-9 { // the logarithms of factorials are rounded
				t.Errorf("%d to %d: %g, want %g", c.b, c.c, p, c.want)
			}
		}
	}
}

// TestPairedBootstrap: every resample picks n pairs; no difference is sure, and a difference that is the same
// throughout is as sure as the number of draws allows.
func TestPairedBootstrap(t *testing.T) {
	low, high, p := PairedBootstrap(5, 99, 1, func(picked []int) float64 {
		for _, k := range picked {
			if len(picked) != 5 || k < 0 || k >= 5 {
				t.Fatal(picked)
			}
		}
		return 0
	})

	if low != 0 || high != 0 || p != 1 {
		t.Errorf("no difference: %g to %g, p %g", low, high, p)
	}

	low, high, p = PairedBootstrap(5, 99, 1, func([]int) float64 { return -2 })
	if low != -2 || high != -2 || p != 2.0/100 {
		t.Errorf("always the same: %g to %g, p %g", low, high, p)
	}
}

// TestBootstrapStderr: whole thousands are drawn, each from a seed of its own, whoever draws them.
func TestBootstrapStderr(t *testing.T) {
	var want []float64
	for k := range 3 {
		r := pyrandom.NewRandom(uint64(k))
		for range 1000 {
			want = append(want, r.Float64())
		}
	}

	got := BootstrapStderr(3999, func(random *pyrandom.Random, figures []float64) {
		if len(figures) != 1000 {
			t.Errorf("%d figures", len(figures))
		}
		for i := range figures {
			figures[i] = random.Float64()
		}
	})

	if got != Deviation(want) {
		t.Errorf("%g, want %g", got, Deviation(want))
	}
}
