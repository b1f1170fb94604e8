package router

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"
)

// clouds are normalised features around a direction of each expert.
func clouds(t testing.TB, experts, prompts, dim int, spread float64) [][][]float64 {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([][][]float64, experts)
	for e := range x {
		centre := make([]float64, dim)
		for i := range centre {
			centre[i] = rng.NormFloat64()
		}

		for range prompts {
			f := make([]float64, dim)
			for i := range f {
				f[i] = centre[i] + spread*rng.NormFloat64()
			}
			if err := Normalize(f); err != nil {
				t.Fatal(err)
			}

			x[e] = append(x[e], f)
		}
	}

	return x
}

// TestClassifiersTellCloudsApart: each classifier finds the expert of nearly every prompt, sees that noise is
// like no expert's, and is the same after it was written and read.
func TestClassifiersTellCloudsApart(t *testing.T) {
	x := clouds(t, 3, 60, 20, 0.5)
	for _, kind := range []string{"lda", "logistic", "mlp"} {
		r, q, err := Fit(x, Options{Classifier: kind, Shrinkage: 0.1, Seed: 5})
		if err != nil {
			t.Fatal(err)
		}

		if q.Accuracy < 0.95 || q.HeldOut != 36 || !(q.LogLoss < 0.3) || !(r.Temperature > 0) {
			t.Errorf("%s: %+v, temperature %v", kind, q, r.Temperature)
		}

		path := filepath.Join(t.TempDir(), "router.safetensors")
		if err := r.Save(path); err != nil {
			t.Fatal(err)
		}

		again, err := Load(path, 3)
		if err != nil {
			t.Fatal(err)
		}

		for e, list := range x {
			a, _, near, err := r.Judge(list[0])
			if err != nil {
				t.Fatal(err)
			}

			b, _, same, err := again.Judge(list[0])
			if err != nil || !slices.Equal(a, b) || near != same || best(a) != e {
				t.Errorf("%s: %v and %v, %v", kind, a, b, err)
			}
		}

		noise := make([]float64, 20)
		noise[3] = 1
		if p, _, far, err := r.Judge(noise); err != nil || far <= r.Outside {
			t.Errorf("%s: noise %v at %v: %v", kind, p, far, err)
		}

		if second, _, err := Fit(x, Options{Classifier: kind, Shrinkage: 0.1, Seed: 5}); err != nil ||
			second.Temperature != r.Temperature {
			t.Errorf("%s: another router from the same prompts: %v", kind, err)
		}
	}
}

// TestFewPrompts: without held-out prompts nothing is claimed; the threshold comes from prompts that were left
// out where that is possible, and is said to be that of the training where it is not.
func TestFewPrompts(t *testing.T) {
	for _, n := range []int{2, 4} {
		for _, kind := range []string{"lda", "logistic", "mlp"} {
			r, q, err := Fit(clouds(t, 3, n, 8, 0.5), Options{Classifier: kind, Shrinkage: 0.1})
			if err != nil || q.HeldOut != 0 || q.Accuracy != 0 || q.LogLoss != 0 || r.Temperature != 1 ||
				q.Seen != (n == 2) || q.Warning() == "" || !(r.Outside > 0) {
				t.Errorf("%d prompts, %s: %+v, %v", n, kind, q, err)
			}
		}
	}
}

// TestTemperatureOfCloudsFarApart: held-out prompts that are told apart at any temperature do not drive it to
// its bound.
func TestTemperatureOfCloudsFarApart(t *testing.T) {
	for _, kind := range []string{"lda", "logistic", "mlp"} {
		r, q, err := Fit(clouds(t, 3, 20, 20, 0.01), Options{Classifier: kind, Shrinkage: 0.1})
		if err != nil || q.Accuracy < 1-1e-9 || r.Temperature < 0.1 {
			t.Errorf("%s: %+v, temperature %v, %v", kind, q, r.Temperature, err)
		}
	}
}

// TestFalseAlarms: of fresh prompts about one in twenty is beyond the threshold, of prompts that differ more
// than those nearly all, also where every fifth prompt is unlike the others. The bounds leave room for what 300
// draws can do.
func TestFalseAlarms(t *testing.T) {
	x := clouds(t, 3, 400, 30, 0.5)
	var fresh [][]float64
	for e := range x {
		fresh = append(fresh, x[e][300:]...)
		x[e] = x[e][:300]
		for i := 4; i < len(x[e]); i += 5 { // wider than the others
			x[e][i] = clouds(t, 1, 1, 30, 0.5)[0][0]
		}
	}

	r, _, err := Fit(x, Options{Classifier: "lda", Shrinkage: 0.1})
	if err != nil {
		t.Fatal(err)
	}

	alarms := 0
	for _, f := range fresh {
		if _, _, far, err := r.Judge(f); err != nil {
			t.Fatal(err)
		} else if far > r.Outside {
			alarms++
		}
	}

	if alarms > 30 {
		t.Errorf("%d of %d", alarms, len(fresh))
	}
}

// TestDiscriminantsMatchGaussians: with equal priors and full shrinkage the discriminants are distances to the means.
func TestDiscriminantsMatchGaussians(t *testing.T) {
	x := clouds(t, 2, 40, 6, 1)
	r, _, err := Fit(x, Options{Classifier: "lda", Shrinkage: 1})
	if err != nil {
		t.Fatal(err)
	}

	variance := r.Chol.At(0, 0) * r.Chol.At(0, 0)
	f := x[0][1]
	s, err := r.scores(f)
	if err != nil {
		t.Fatal(err)
	}

	square := func(t int) (d float64) {
		for i, v := range f {
			d += (v - r.Mean.At(t, i)) * (v - r.Mean.At(t, i)) / variance
		}
		return d
	}

	// roundings of two sums
	if got, want := s[0]-s[1], (square(1)-square(0))/2; math.Abs(got-want) > 1e-9*math.Abs(want)+1e-9 {
		t.Errorf("%v, want %v", got, want)
	}
	if d, err := r.distance(f); err != nil || math.Abs(d-min(square(0), square(1))) > 1e-9*d {
		t.Errorf("%v %v", d, err)
	}
}

// TestBadFeatures: what no feature can be is refused, and so are prompts that cannot train.
func TestBadFeatures(t *testing.T) {
	for _, x := range [][]float64{{0, 0}, {1, math.NaN()}, {math.Inf(1), 1}, {}} {
		if err := Normalize(x); !errors.Is(err, ErrFeature) {
			t.Errorf("%v: %v", x, err)
		}
	}

	same := [][][]float64{{{1, 0}, {1, 0}}, {{0, 1}, {0, 1}}}
	if _, _, err := Fit(same, Options{Classifier: "lda", Shrinkage: 0.1}); !errors.Is(err, ErrPrompts) {
		t.Errorf("%v", err)
	}
	if _, _, err := Fit([][][]float64{{{1, 0}}, {}}, Options{Classifier: "lda"}); !errors.Is(err, ErrPrompts) {
		t.Errorf("%v", err)
	}

	r, _, err := Fit(clouds(t, 2, 10, 4, 1), Options{Classifier: "lda", Shrinkage: 0.1})
	if err != nil {
		t.Fatal(err)
	}

	if _, _, _, err := r.Judge([]float64{1}); !errors.Is(err, ErrFeature) {
		t.Errorf("%v", err)
	}

	path := filepath.Join(t.TempDir(), "r")
	if err := r.Save(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, 3); !errors.Is(err, ErrFile) {
		t.Errorf("%v", err)
	}

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for i := len(data) - 8; i < len(data); i++ {
		data[i] = 0xff
	}
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, 2); !errors.Is(err, ErrFile) {
		t.Errorf("%v", err)
	}
}

// Many networks are fitted at once, so that whatever runs beside its own fit is disturbed by the others.
func TestNetworkDependsOnSeedAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 0))
	var s sample
	for i := range 48 {
		x := make([]float64, 6)
		for j := range x {
			x[j] = rng.NormFloat64() + float64(i%3*j)
		}
		s.add(x, i%3)
	}

	fits := make([]*network, 8)
	var group errgroup.Group
	for i := range fits {
		group.Go(func() (err error) {
			fits[i], err = fitNetwork(s, 3, 11)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}

	for i, n := range fits[1:] {
		for l := range n.weight {
			if !slices.Equal(n.weight[l].Data, fits[0].weight[l].Data) || !slices.Equal(n.bias[l], fits[0].bias[l]) {
				t.Fatalf("fit %d of the same prompts and seed: layer %d differs", i+1, l)
			}
		}
	}
}
