package draw

import (
	"math"
	"slices"
	"testing"
)

// TestDraws: numbers depend on seed, name and position alone, and are spread as they should be.
func TestDraws(t *testing.T) {
	k := NewKey(1, "a")
	if k != NewKey(1, "a") || k == NewKey(2, "a") || k == NewKey(1, "b") || k.With(1) == k.With(2) {
		t.Error("keys are not what seed and name make them")
	}
	const n = 100_000
	x := make([]float32, n)
	k.Uniform(x, 2)
	mean, square := moments(x)
	// Five standard errors: of the mean 2/√3/√n, of the mean square √(16/5 - 16/9)/√n.
	if math.Abs(mean) > 5*2/math.Sqrt(3*n) || math.Abs(square-4.0/3) > 5*math.Sqrt((16.0/5-16.0/9)/n) {
		t.Errorf("uniform: mean %v, mean square %v", mean, square)
	}
	k.Normal(x, 3)
	mean, square = moments(x)
	if math.Abs(mean) > 5*3/math.Sqrt(n) || math.Abs(square-9) > 5*9*math.Sqrt(2.0/n) {
		t.Errorf("normal: mean %v, mean square %v", mean, square)
	}
	p := k.Permutation(1000)
	slices.Sort(p)
	for i, v := range p {
		if int(v) != i {
			t.Fatal("no permutation")
		}
	}
}

func moments(x []float32) (mean, square float64) {
	for _, v := range x {
		mean += float64(v)
		square += float64(v) * float64(v)
	}
	return mean / float64(len(x)), square / float64(len(x))
}

// TestDropout: the share that is dropped is right, the mean stays, and pieces agree with the whole.
func TestDropout(t *testing.T) {
	const n, p = 40_000, 0.1
	x, y, z := make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range x {
		x[i] = 1
	}
	k := NewKey(3, "mask")
	k.Dropout(y, x, 0, p)
	dropped := 0
	for i, v := range y {
		switch v {
		case 0:
			dropped++
		case 1 / float32(1-p):
		default:
			if math.Abs(float64(v)-1/(1-p)) > 1e-6 {
				t.Fatalf("element %d is %v", i, v)
			}
		}
	}
	if math.Abs(float64(dropped)-n*p) > 5*math.Sqrt(n*p*(1-p)) {
		t.Errorf("%d of %d dropped", dropped, n)
	}
	k.Dropout(z[:1000], x[:1000], 0, p)
	k.Dropout(z[1000:], x[1000:], 1000, p)
	if !slices.Equal(y, z) {
		t.Error("pieces differ from the whole")
	}
}
