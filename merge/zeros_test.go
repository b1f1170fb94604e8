package merge

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/merge/internal/mergetest"
)

// prunedModels writes a base half of whose matrix is 0, a model that has other values everywhere, and one with the
// base's zeros.
func prunedModels(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	r := rand.New(rand.NewPCG(4, 4))
	const n = 300 * 700

	base := make([]float32, n)
	dense := make([]float32, n)
	sparse := make([]float32, n)
	for i := range base {
		dense[i] = float32(r.NormFloat64())
		if r.IntN(2) == 0 {
			base[i] = float32(r.NormFloat64())
			sparse[i] = base[i] + float32(0.1*r.NormFloat64())
		}
	}

	for name, x := range map[string][]float32{"base": base, "dense": dense, "sparse": sparse} {
		mergetest.WriteModel(t, filepath.Join(dir, name), map[string][]float32{"w": x})
	}

	return dir
}

// TestKeepZeros: what is 0 in the base, or in the first model without one, is 0 in the output and nothing else
// changes, for any number of workers; the report counts it. Without, the loss of the pattern is said.
func TestKeepZeros(t *testing.T) {
	dir := prunedModels(t)
	models := fmt.Sprintf("models:\n  - {model: %[1]s/base, parameters: {weight: 0.5}}\n  - {model: %[1]s/dense, "+
		"parameters: {weight: 0.5}}\n", dir)
	based := fmt.Sprintf("base_model: %[1]s/base\nmodels:\n  - {model: %[1]s/dense, parameters: {weight: 0.5, "+
		"density: 0.6}}\n", dir)

	for name, text := range map[string]string{
		"linear": "merge_method: linear\n" + models,
		"ties":   "merge_method: ties\n" + based,
		"bf16":   "merge_method: task_arithmetic\nout_dtype: bfloat16\n" + based,
	} {
		plain := filepath.Join(t.TempDir(), "a")
		kept := filepath.Join(t.TempDir(), "b")
		again := filepath.Join(t.TempDir(), "c")
		lost, err := Models(t.Context(), parse(t, text), plain, Options{})
		if err != nil {
			t.Fatal(name, err)
		}

		report, err := Models(t.Context(), parse(t, text), kept, Options{KeepZeros: true, Threads: 3})
		if err != nil {
			t.Fatal(name, err)
		}

		if _, err := Models(t.Context(), parse(t, text), again, Options{KeepZeros: true, Threads: 1}); err != nil {
			t.Fatal(name, err)
		}

		base := mergetest.Values(t, filepath.Join(dir, "base"))["w"]
		x := mergetest.Values(t, plain)["w"]
		y := mergetest.Values(t, kept)["w"]
		zeros, restored := int64(0), int64(0)
		for i, b := range base {
			want := x[i]
			if b == 0 {
				zeros++
				if want != 0 {
					restored++
				}
				want = 0
			}

			if y[i] != want {
				t.Fatalf("%s: element %d is %v, want %v", name, i, y[i], want)
			}
		}

		if z := report.Zeros; z == nil || z.Kept != zeros || z.Restored != restored ||
			!strings.HasSuffix(z.From, "base") || len(z.Lost) > 0 {
			t.Errorf("%s: report says %+v, want %d zeros, %d of them restored", name, z, zeros, restored)
		}

		if !slices.Equal(y, mergetest.Values(t, again)["w"]) {
			t.Errorf("%s: one worker and three differ", name)
		}
		if restored < zeros/4 { // ties keeps what is not 0 of the difference: most of the pattern stays
			continue
		}

		if lost.Zeros == nil || len(lost.Zeros.Lost) != 1 ||
			!strings.Contains(strings.Join(lost.Warnings, "\n"), "can be kept") {
			t.Errorf("%s: the loss is not said: %+v, %q", name, lost.Zeros, lost.Warnings)
		} else if l := lost.Zeros.Lost[0]; l.Before < 0.45 || l.Before > 0.55 || l.After > 0.25 || l.Matrices != 1 {
			t.Errorf("%s: lost %+v", name, l)
		}
	}
}

// TestSparseStays: nothing is said where the pattern stays.
func TestSparseStays(t *testing.T) {
	dir := prunedModels(t)
	text := fmt.Sprintf("merge_method: linear\nmodels:\n  - {model: %[1]s/base, parameters: {weight: 0.5}}\n  - "+
		"{model: %[1]s/sparse, parameters: {weight: 0.5}}\n", dir)
	report, err := Models(t.Context(), parse(t, text), filepath.Join(t.TempDir(), "out"), Options{})
	if err != nil || report.Zeros != nil || len(report.Warnings) > 0 {
		t.Errorf("%v, %+v, %q", err, report.Zeros, report.Warnings)
	}
}

// TestTiesReported: the report counts what equals a threshold, and says by which rule some of it stays; the rules
// give different bytes.
func TestTiesReported(t *testing.T) {
	dir := t.TempDir()
	base, one := make([]float32, 4000), make([]float32, 4000)
	for i := range one {
		one[i] = float32(i%4) / 4 // 1000 each of 0, 1/4, 1/2, 3/4
	}

	mergetest.WriteModel(t, filepath.Join(dir, "base"), map[string][]float32{"w": base})
	mergetest.WriteModel(t, filepath.Join(dir, "one"), map[string][]float32{"w": one})
	text := fmt.Sprintf("merge_method: ties\nbase_model: %[1]s/base\nmodels:\n  - {model: %[1]s/one, parameters: "+
		"{weight: 1, density: 0.3}}\n", dir)

	for _, rule := range []TieBreak{"", TieDraw, TieIndex} {
		out := filepath.Join(t.TempDir(), "out")
		report, err := Models(t.Context(), parse(t, text), out, Options{Ties: rule})
		if err != nil {
			t.Fatal(err)
		}

		if k := report.Ties; k == nil || k.Elements != 4000 || k.Tied != 1000 || k.Kept != 200 || len(k.Tensors) != 1 ||
			k.Rule != max(rule, TieDraw) {
			t.Errorf("%q: %+v", rule, report.Ties)
		}

		last := 0
		for i, v := range mergetest.Values(t, out)["w"] {
			if v == 0.5 {
				last = i
			}
		}

		if (last < 1000) != (rule == TieIndex) {
			t.Errorf("%q: the last of the ties that stay is element %d", rule, last)
		}
	}

	if err := (Options{Ties: "none"}).Validate(); !errors.Is(err, ErrOption) {
		t.Errorf("a rule that is not known: %v", err)
	}
}

// TestResumeDamaged: a merge that finds its output complete notices files beside the weights that have changed or are
// gone.
func TestResumeDamaged(t *testing.T) {
	dir := prunedModels(t)
	text := fmt.Sprintf("merge_method: linear\nmodels:\n  - {model: %[1]s/base, parameters: {weight: 0.5}}\n  - "+
		"{model: %[1]s/dense, parameters: {weight: 0.5}}\n", dir)
	out := filepath.Join(t.TempDir(), "out")
	if _, err := Models(t.Context(), parse(t, text), out, Options{}); err != nil {
		t.Fatal(err)
	}

	var manifest struct{ Files map[string]string }
	if err := json.Unmarshal(readAll(t, filepath.Join(out, "merge.json")), &manifest); err != nil ||
		len(manifest.Files) == 0 {
		t.Fatalf("%v: the manifest has %v", err, manifest.Files)
	}

	manifest.Files["model.safetensors"] = "" // whose values have no sum, but which has to be one
	for name := range manifest.Files {
		path := filepath.Join(out, name)
		text0 := readAll(t, path)
		for what, damage := range map[string]func() error{
			"changed": func() error { return os.WriteFile(path, append(slices.Clone(text0), ' '), 0o644) },
			"short":   func() error { return os.WriteFile(path, text0[:len(text0)/2], 0o644) },
			"gone":    func() error { return os.Remove(path) },
		} {
			if err := damage(); err != nil {
				t.Fatal(err)
			}

			if _, err := Models(t.Context(), parse(t, text), out, Options{Resume: true}); !errors.Is(err, ErrVerify) ||
				!strings.Contains(err.Error(), name) {
				t.Errorf("%s is %s: %v", name, what, err)
			}
		}

		if err := os.WriteFile(path, text0, 0o644); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := Models(t.Context(), parse(t, text), out, Options{Resume: true}); err != nil {
		t.Errorf("put back: %v", err)
	}
}

func readAll(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
