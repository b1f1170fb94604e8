package merge

import (
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// The hand-made tensors of the specification's conflict vectors; all values are exact in bfloat16.
var handMade = map[string][]float32{
	"base": {0.5, -0.25, 0.125, 1.0, -1.0, 0.75, 0.0, 0.25},
	"m1":   {0.75, -0.25, 0.625, 0.5, -0.5, 0.75, -0.125, 0.3125},
	"m2":   {0.25, -0.75, 0.25, 0.875, -1.75, 1.0, 0.25, 0.25},
	"m3":   {1.0, -0.5, 0.0, 1.125, -1.0, 0.25, 0.375, -0.25},
}

// writeModel writes a folder of F32 tensors of shape [2, n/2].
func writeModel(t testing.TB, dir string, tensors map[string][]float32) {
	t.Helper()
	var infos []safetensors.Info
	for name, x := range tensors {
		infos = append(infos, safetensors.Info{Name: name, DType: safetensors.F32, Shape: []int64{2, int64(len(x) / 2)}})
	}
	w, err := safetensors.CreateDir(dir, infos, nil, safetensors.DirOptions{Order: safetensors.OrderHF})
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range tensors {
		data := make([]byte, 0, 4*len(x))
		for _, v := range x {
			b := math.Float32bits(v)
			data = append(data, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
		}
		if err := w.WriteTensor(name, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}

// handMadeRecipe writes the hand-made models, as layer 0 of a model, and gives a mediate recipe of them.
func handMadeRecipe(t testing.TB, parameters string) string {
	t.Helper()
	dir := t.TempDir()
	for name, x := range handMade {
		writeModel(t, filepath.Join(dir, name), map[string][]float32{"model.layers.0.w": x})
	}
	return "merge_method: mediate\nbase_model: " + dir + "/base\nmodels: [{model: " + dir + "/m1}, {model: " + dir + "/m2}, {model: " + dir +
		"/m3}]\nparameters: " + parameters + "\n"
}

// TestConflictVectors: the counts and metrics of the specification's vectors, without and with denoising.
func TestConflictVectors(t *testing.T) {
	for _, c := range []struct {
		density                                float64
		disagree, mass                         float64
		conflicting, several, active, elements int64
	}{
		{1, 0.708333, 0.438095, 7, 8, 8, 8},
		{0.5, 0.333333, 0.372093, 3, 3, 8, 8},
	} {
		r := parse(t, handMadeRecipe(t, "{}"))
		got, err := Conflict(t.Context(), r, ConflictOptions{Density: c.density})
		if err != nil {
			t.Fatal(err)
		}
		g := got.Groups[0]
		if g.Both != c.conflicting || g.Several != c.several || g.Active != c.active || g.Elements != c.elements {
			t.Errorf("density %v: %+v", c.density, g)
		}
		for _, x := range [][2]float64{{g.Disagree, c.disagree}, {g.Mass, c.mass}} {
			if math.Abs(x[0]-x[1]) > 5e-7 { // the vectors have six decimals
				t.Errorf("density %v: %v, want %v", c.density, x[0], x[1])
			}
		}
	}
}

// TestConflictIsTheSameForAnyWorkers: bit for bit, whatever the workers, the memory and the split into files.
func TestConflictIsTheSameForAnyWorkers(t *testing.T) {
	text := "merge_method: mediate\nbase_model: " + nano + "base\nmodels: [{model: " + nano + "news}, {model: " + nano + "sums}, {model: SPLIT}]\n"
	split := filepath.Join(t.TempDir(), "tales")
	_, err := Models(t.Context(), parse(t, "merge_method: passthrough\nmodels: [{model: "+nano+"tales}]\n"), split, Options{MaxShard: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	var want string
	for _, o := range []ConflictOptions{{Workers: 1}, {Workers: 2}, {Workers: 7, Memory: 256 << 20}} {
		for _, model := range []string{nano + "tales", split} {
			o.Granularity = "tensor"
			got, err := Conflict(t.Context(), parse(t, strings.ReplaceAll(text, "SPLIT", model)), o)
			if err != nil {
				t.Fatal(err)
			}
			got.Seconds = 0
			data, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			if want == "" {
				want = string(data)
			}
			if string(data) != want {
				t.Errorf("%+v: another result", o)
			}
		}
	}
}

// TestConflictBadInput: what cannot be compared is refused with a sentinel, and a strange base is warned of.
func TestConflictBadInput(t *testing.T) {
	r := parse(t, "merge_method: linear\nmodels: [{model: "+nano+"news, parameters: {weight: 1}}]\n")
	if _, err := Conflict(t.Context(), r, ConflictOptions{}); !errors.Is(err, ErrRecipe) {
		t.Errorf("no base: %v", err)
	}
	if _, err := Conflict(t.Context(), r, ConflictOptions{Density: 2}); !errors.Is(err, ErrOption) {
		t.Errorf("density: %v", err)
	}
	dir := t.TempDir()
	writeModel(t, filepath.Join(dir, "a"), map[string][]float32{"w": {1, 2, 3, 4}})
	writeModel(t, filepath.Join(dir, "b"), map[string][]float32{"w": {-4, 3, -2, 1}})
	writeModel(t, filepath.Join(dir, "c"), map[string][]float32{"w": {1, 2, 3, 4, 5, 6}})
	recipe := "merge_method: mediate\nbase_model: " + dir + "/a\nmodels: [{model: " + dir + "/X}]\n"
	got, err := Conflict(t.Context(), parse(t, strings.ReplaceAll(recipe, "X", "b")), ConflictOptions{})
	if err != nil || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "ancestor") {
		t.Errorf("%v %v", got, err)
	}
	if _, err := Conflict(t.Context(), parse(t, strings.ReplaceAll(recipe, "X", "c")), ConflictOptions{}); err == nil || !strings.Contains(err.Error(), "shape") {
		t.Errorf("shapes: %v", err)
	}
	if _, err := Conflict(t.Context(), parse(t, strings.ReplaceAll(recipe, "X", "d")), ConflictOptions{}); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("no model: %v", err)
	}
}
