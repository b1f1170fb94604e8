package router

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzLoad: a router that loads judges features, and its weights are a distribution.
func FuzzLoad(f *testing.F) {
	path := filepath.Join(f.TempDir(), "router.safetensors")
	for _, kind := range []string{"lda", "logistic", "mlp", Nearest} {
		r, _, err := Fit(clouds(f, 2, 6, 2, 0.1), Options{Classifier: kind, Shrinkage: 0.1})
		if kind == Nearest {
			experts, others, _ := named(rand.New(rand.NewPCG(3, 4)))
			r, _, err = FitNearest([][]Prompt{experts[0][:6], experts[1][:6]}, others[:6], Options{})
		}
		if err != nil {
			f.Fatal(err)
		}

		if err := r.Save(path); err != nil {
			f.Fatal(err)
		}

		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}

		f.Add(data)
		if err := os.Remove(path); err != nil { // Save replaces nothing
			f.Fatal(err)
		}
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		defer fuzzlimit.Watch(t, len(data))()

		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}

		r, err := Load(path, 2)
		if err != nil {
			return
		}

		x := make([]float64, r.Dim())
		x[0] = 1
		list, energy, distance, err := r.JudgePrompt(x, []int32{7, 1000, 1100, 9})
		if err != nil {
			return
		}

		for _, p := range list {
			if !(p >= 0 && p <= 1+1e-9) || math.IsNaN(p) {
				t.Errorf("probability %g, energy %g, distance %g", p, energy, distance)
			}
		}
	})
}

// TestOverflow: a router whose values are finite but too large to judge by says so.
func TestOverflow(t *testing.T) {
	r, _, err := Fit(clouds(t, 2, 24, 3, 0.1), Options{Classifier: "lda", Shrinkage: 0.1})
	if err != nil {
		t.Fatal(err)
	}

	for i := range r.direction.Data {
		r.direction.Data[i] = math.MaxFloat64
	}
	if p, _, _, err := r.Judge([]float64{1, 1, 1}); !errors.Is(err, ErrFile) {
		t.Errorf("%v, %v", p, err)
	}
}
