package allocation

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Hill's estimate of a Pareto tail finds its exponent: with 3000 draws to within 8 %.
func TestExponentOfPareto(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	v := make([]float64, 3000)
	for i := range v {
		v[i] = math.Pow(rng.Float64(), -1/1.5) // density ~ x^-2.5
	}

	for _, peak := range []bool{false, true} {
		if a := Exponent(slices.Clone(v), peak); math.Abs(a-2.5) > .2 {
			t.Errorf("peak %t: %.3f, want 2.5", peak, a)
		}
	}

	if a := Exponent([]float64{2, 2, 2}, true); a != 1 {
		t.Errorf("a flat spectrum: %g", a)
	}
	if a := Exponent([]float64{0, 0, 0}, false); a != 1 {
		t.Errorf("an empty spectrum: %g", a)
	}
}

// The threshold takes the share that was asked for, no matrix more than the limit, and more of a matrix with
// lower scores.
func TestBelow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		share := rapid.Float64Range(.05, .9).Draw(rt, "share")

		var all []*Levels
		for k := range rapid.IntRange(1, 5).Draw(rt, "matrices") {
			l := NewLevels(1)
			for range 400 {
				if !l.Add(float32(rng.ExpFloat64() * float64(k+1))) {
					rt.Fatal("refused")
				}
			}

			all = append(all, l)
		}

		parts, sum := Below(all, share, .95), 0.0
		for i, p := range parts {
			sum += p / float64(len(parts))
			if p < 0 || p > .95 {
				rt.Fatalf("matrix %d loses %g", i, p)
			}
		}

		if math.Abs(sum-share) > 1e-9 {
			rt.Fatalf("%g, want %g", sum, share)
		}
	})

	if NewLevels(1).Add(-1) {
		t.Error("a negative score counts")
	}
}

// The published mixture of patterns, and the errors of what cannot be.
func TestBlocks(t *testing.T) {
	d := []float64{1.7236, 1.7126, 1.1167, 1.0615, .4944}
	if n, err := Mixed(d, 2, 4, 2, false); err != nil || !slices.Equal(n, []int{1, 1, 2, 2, 3}) {
		t.Errorf("%v, %v", n, err)
	}
	if n, err := Mixed(d, 2, 4, 2, true); err != nil || !slices.Equal(n, []int{0, 0, 2, 2, 3}) {
		t.Errorf("special: %v, %v", n, err)
	}
	if _, err := Mixed(d, 2, 4, 4, false); !errors.Is(err, ErrRange) {
		t.Errorf("%v", err)
	}

	s, err := Spectral([]float64{2, 3, 4}, []float64{1, 1, 2}, .5, .3)
	if err != nil || math.Abs((s[0]+s[1]+2*s[2])/4-.5) > 1e-12 || s[0] >= s[1] || s[1] >= s[2] {
		t.Errorf("%v, %v", s, err)
	}

	if _, err := Spectral([]float64{2, 4}, []float64{1, 1}, .9, .3); !errors.Is(err, ErrRange) {
		t.Errorf("%v", err)
	}
}
