package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/stat"
)

// TestCorrelations compares with an implementation of others and with counts by hand.
func TestCorrelations(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		a, b := make([]float64, 30), make([]float64, 30)
		for i := range a {
			a[i] = draw.NormFloat64()
			b[i] = a[i] + draw.NormFloat64()
		}

		if got, want := Spearman(a, b), stat.Correlation(ranks(a), ranks(b), nil); math.Abs(got-want) > 1e-12 {
			t.Errorf("Spearman %g, want %g", got, want)
		}
		if got, want := Kendall(a, b), stat.Kendall(a, b, nil); math.Abs(got-want) > 1e-12 {
			t.Errorf("Kendall %g, want %g", got, want)
		}
	}

	// With ties: 1, 2.5, 2.5, 4; of 6 pairs 4 agree, 1 disagrees, 1 is tied in a.
	a, b := []float64{1, 2, 2, 3}, []float64{1, 3, 2, 2.5}
	if got, want := Kendall(a, b), 3/math.Sqrt(5*6); math.Abs(got-want) > 1e-12 {
		t.Errorf("Kendall %g, want %g", got, want)
	}
	if r := ranks(a); r[1] != 2.5 || r[2] != 2.5 || r[3] != 4 {
		t.Errorf("ranks %v", r)
	}

	for _, x := range [][]float64{{1, math.NaN(), 2}, {math.NaN(), math.NaN(), 1}} {
		if !math.IsNaN(Spearman(x, a[:3])) || !math.IsNaN(Kendall(a[:3], x)) {
			t.Errorf("the correlation with %v is a number", x)
		}
	}

	if !math.IsNaN(Spearman(nil, nil)) || !math.IsNaN(Kendall([]float64{1}, []float64{1})) ||
		!math.IsNaN(Spearman([]float64{1, 1}, []float64{1, 2})) {
		t.Error("correlations of nothing are numbers")
	}
}
