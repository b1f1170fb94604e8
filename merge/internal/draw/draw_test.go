package draw

import (
	"math"
	"testing"
)

// TestMoments: mean, variance and the fourth moment of 200,000 draws lie within five standard errors of the
// distribution's.
func TestMoments(t *testing.T) {
	const n = 200_000
	k := NewKey(7, "moments")
	var sum, square, fourth, uniform float64
	for i := range uint64(n) {
		x := k.Normal(i)
		sum, square, fourth = sum+x, square+x*x, fourth+x*x*x*x
		u := k.Uniform(i)
		if u <= 0 || u >= 1 {
			t.Fatal(u)
		}
		uniform += u
	}
	for name, x := range map[string][3]float64{
		"mean": {sum / n, 0, 1}, "variance": {square / n, 1, math.Sqrt2}, "fourth moment": {fourth / n, 3, math.Sqrt(96)}, "uniform": {uniform / n, 0.5, math.Sqrt(1.0 / 12)},
	} {
		if math.Abs(x[0]-x[1]) > 5*x[2]/math.Sqrt(n) {
			t.Errorf("%s: %v, want %v", name, x[0], x[1])
		}
	}
}

// TestKeysDiffer: seeds and names lead to sequences of their own.
func TestKeysDiffer(t *testing.T) {
	seen := map[uint64]bool{}
	for _, k := range []Key{NewKey(0, ""), NewKey(1, ""), NewKey(0, "a"), NewKey(0, "a\x00")} {
		for i := range uint64(1000) {
			if b := k.Bits(i); seen[b] {
				t.Fatal("a number twice")
			} else {
				seen[b] = true
			}
		}
	}
	first, again := NewKey(3, "x"), NewKey(3, "x")
	if first != again {
		t.Error("not a function of seed and name")
	}
}
