package combine_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/combine"
)

// made is an adapter of one matrix with given factors in rows, A [r, in] and B [out, r].
func made(name string, a, b linalg.Matrix) combine.Named {
	f := adapter.Plain{A: adapter.NewParam("A", a.Rows, a.Cols), B: adapter.NewParam("B", b.Rows, b.Cols)}
	for i, v := range a.Clone().Data {
		f.A.Data()[i] = float32(v)
	}
	for i, v := range b.Clone().Data {
		f.B.Data()[i] = float32(v)
	}
	m := adapter.Module{Path: "model.layers.0.q_proj", Tensor: "q.weight", In: a.Cols, Out: b.Rows}
	return combine.Named{Name: name, Adapter: &adapter.Adapter{
		Config: adapter.Config{
			Kind: adapter.LoRA, Rank: a.Rows, Alpha: float64(a.Rows), Targets: adapter.Match{Names: []string{"q_proj"}},
		},
		Low: []*adapter.Low{{Module: m, Rank: a.Rows, Alpha: float64(a.Rows), Scale: 1, Factors: f}},
	}}
}

// normal is a matrix of normal numbers, a seed at a time: nothing shrinks to matrices whose singular vectors are
// arbitrary.
func normal(t *rapid.T, name string, rows, cols int) linalg.Matrix {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, name), uint64(len(name))))
	m := linalg.New(rows, cols)
	for i := range m.Data {
		m.Data[i] = r.NormFloat64()
	}
	return m
}

// changed is the change that a combination makes.
func changed(t *rapid.T, o combine.Options, list ...combine.Named) []float64 {
	t.Helper()
	got, err := combine.Run(t.Context(), list, o)
	if err != nil {
		t.Fatal(err)
	}
	return delta(got.Low[0])
}

// TestGauge: the common spaces see changes, not factors: B·G and G⁻¹·A give what B and A give.
func TestGauge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := normal(t, "a", 2, 7), normal(t, "b", 6, 2)
		// Exchanging and negating directions keeps float32 what it is.
		turnedA, turnedB := linalg.New(2, 7), linalg.New(6, 2)
		for j := range 7 {
			turnedA.Set(0, j, -2*a.At(1, j))
			turnedA.Set(1, j, a.At(0, j))
		}
		for i := range 6 {
			turnedB.Set(i, 0, b.At(i, 1)/-2)
			turnedB.Set(i, 1, b.At(i, 0))
		}
		turned := made("turned", turnedA, turnedB)
		other := made("other", normal(t, "oa", 3, 7), normal(t, "ob", 6, 3))
		for _, method := range []string{"tsv_core", "iso_core", "tsv_iso_core", "ties_knots"} {
			o := combine.Options{Method: method}
			if method == "ties_knots" {
				o.Density = 0.5
			}

			plain := changed(t, o, made("plain", a, b), other)
			if same := changed(t, o, turned, other); !near(plain, same, 2e-4) {
				t.Fatalf("%s: %v and %v", method, plain, same)
			}
		}
	})
}

// TestApart: changes that share no direction are added by tsv_core as they are, and iso_core gives their sum one
// singular value.
func TestApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		upper, lower := linalg.New(6, 2), linalg.New(6, 2)
		left, right := linalg.New(2, 8), linalg.New(2, 8)
		upper.Sub(0, 3, 0, 2).Copy(normal(t, "u", 3, 2))
		lower.Sub(3, 6, 0, 2).Copy(normal(t, "l", 3, 2))
		left.Sub(0, 2, 0, 4).Copy(normal(t, "a", 2, 4))
		right.Sub(0, 2, 4, 8).Copy(normal(t, "b", 2, 4))

		list := []combine.Named{made("a", left, upper), made("b", right, lower)}
		weights := []float64{0.5, -2}
		want := weightedSum(list, weights, "model.layers.0.q_proj")
		if got := changed(t, combine.Options{Method: "tsv_core", Weights: weights}, list...); !near(got, want, 1e-4) {
			t.Fatalf("tsv_core: %v, want %v", got, want)
		}

		got := changed(t, combine.Options{Method: "iso_core"}, list...)
		s, err := linalg.Solver{}.SingularValues(linalg.Of(got, 6, 8))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range s {
			if v > 1e-4 && math.Abs(v-s[0]) > 1e-4*s[0] {
				t.Fatalf("iso_core: singular values %v", s)
			}
		}
	})
}

// TestCoreRank: adapters of different ranks need no common one, the result has their sum, or less where that is asked
// for: then it is the best approximation.
func TestCoreRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := []combine.Named{
			made("a", normal(t, "a1", 1, 7), normal(t, "b1", 6, 1)),
			made("b", normal(t, "a2", 3, 7), normal(t, "b2", 6, 3)),
		}
		for _, method := range []string{"tsv_core", "dare_linear_knots"} {
			o := combine.Options{Method: method}
			if method != "tsv_core" {
				o.Density = 1
			}
			whole, err := combine.Run(t.Context(), list, o)
			if err != nil {
				t.Fatal(err)
			}
			if whole.MaxRank() != 4 {
				t.Fatalf("%s: rank %d", method, whole.MaxRank())
			}

			o.Rank = 2
			s, err := linalg.Solver{}.SingularValues(linalg.Of(delta(whole.Low[0]), 6, 7))
			if err != nil {
				t.Fatal(err)
			}
			rest := 0.0
			for _, v := range s[2:] {
				rest += v * v
			}
			cut, off := changed(t, o, list...), 0.0
			for i, v := range delta(whole.Low[0]) {
				off += (v - cut[i]) * (v - cut[i])
			}
			if math.Abs(math.Sqrt(off)-math.Sqrt(rest)) > 1e-4*(1+s[0]) {
				t.Fatalf("%s: a rank of 2 is off by %g, the best by %g", method, math.Sqrt(off), math.Sqrt(rest))
			}
		}
	})
}
