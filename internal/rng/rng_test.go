package rng

import (
	"math"
	"slices"
	"testing"
)

// TestKeys: numbers depend on seed, purpose and position alone, and different ones lead to sequences of their own.
func TestKeys(t *testing.T) {
	k := New(1, "a")
	if k != New(1, "a") || k == New(2, "a") || k == New(1, "b") || k.With(1) == k.With(2) {
		t.Error("keys are not what seed and purpose make them")
	}
	if first, again := NewWide(3, "x"), NewWide(3, "x"); first != again {
		t.Error("a wide key is not a function of seed and purpose")
	}

	seen := map[uint64]bool{}
	for _, bits := range []func(uint64) uint64{
		NewWide(0, "").Bits, NewWide(1, "").Bits, NewWide(0, "a").Bits, NewWide(0, "a\x00").Bits,
		New(0, "").Bits, New(1, "").Bits, New(0, "a").Bits, New(0, "a").With(0).Bits, Token(0).Bits, Sketch(1).Bits,
	} {
		for i := range uint64(1000) {
			b := bits(i)
			if seen[b] {
				t.Fatal("a number twice")
			}
			seen[b] = true
		}
	}
}

// TestMoments: mean, variance and the fourth moment of 200,000 numbers lie within five standard errors of the
// distribution's.
func TestMoments(t *testing.T) {
	const n = 200_000
	single := make([]float32, n)
	New(1, "a").FillNormal(single, 1)
	flat := make([]float32, n)
	New(1, "b").FillUniform(flat, 0.5)

	stream, even := NewStream(7, 1), NewStream(7, 2)

	for name, normal := range map[string]func(i uint64) float64{
		"wide": NewWide(7, "moments").Normal, "key": func(i uint64) float64 { return float64(single[i]) },
		"stream": func(uint64) float64 { return stream.Normal() },
	} {
		var mean, square, fourth float64
		for i := range uint64(n) {
			x := normal(i)
			mean += x / n
			square += x * x / n
			fourth += x * x * x * x / n
		}

		for moment, x := range map[string][3]float64{
			"mean": {mean, 0, 1}, "variance": {square, 1, math.Sqrt2}, "fourth moment": {fourth, 3, math.Sqrt(96)},
		} {
			if math.Abs(x[0]-x[1]) > 5*x[2]/math.Sqrt(n) {
				t.Errorf("%s: %s of normal numbers %v, want %v", name, moment, x[0], x[1])
			}
		}
	}

	for name, uniform := range map[string]func(i uint64) float64{
		"wide": NewWide(7, "moments").Open, "key": New(7, "moments").Float, "token": Token(7).Float,
		"fill":   func(i uint64) float64 { return float64(flat[i]) + 0.5 },
		"stream": func(uint64) float64 { return even.Float() },
	} {
		mean := 0.0
		for i := range uint64(n) {
			u := uniform(i)
			if u < 0 || u >= 1 || u == 0 && name == "wide" {
				t.Fatal(name, u)
			}
			mean += u / n
		}

		if math.Abs(mean-0.5) > 5*math.Sqrt(1.0/12)/math.Sqrt(n) {
			t.Errorf("%s: mean of uniform numbers %v", name, mean)
		}
	}
}

// TestPermutations: every number comes once.
func TestPermutations(t *testing.T) {
	p := New(1, "a").Permutation(1000)
	slices.Sort(p)
	o := Order(1, 1000)
	slices.Sort(o)
	for i := range p {
		if int(p[i]) != i || o[i] != i {
			t.Fatal("no permutation")
		}
	}
}

// TestDropout: the fraction that is dropped is right, the mean stays, and pieces agree with the whole.
func TestDropout(t *testing.T) {
	const n, p = 40_000, 0.1
	x := make([]float32, n)
	y := make([]float32, n)
	z := make([]float32, n)
	for i := range x {
		x[i] = 1
	}

	k := New(3, "mask")
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
