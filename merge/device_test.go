//go:build linux && (amd64 || arm64)

package merge

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
	"github.com/modelcompress/compress/merge/internal/mergetest"
)

// TestGPU merges on a GPU and on the CPU. With an election of signs every step is rounded
// alike, so the values are the same, but for the sign of zeros. Elsewhere the CPU fuses products and sums,
// which the device rounds one by one, and sums that restore norms run in another order: values near 1 are off
// by 1e-6 at most, and then by a unit in the last place of the output's type.
func TestGPU(t *testing.T) {
	dir, rng := t.TempDir(), rand.New(rand.NewPCG(1, 2))
	for _, model := range []string{"base", "one", "two"} {
		tensors := map[string][]float32{
			"large": make([]float32, 1<<20+4096), "small": make([]float32, 6000),
			"tiny": make([]float32, 2),
		}
		for _, x := range tensors {
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
		}

		mergetest.WriteModel(t, filepath.Join(dir, model), tensors)
	}

	inputs := `
base_model: ` + dir + `/base
models:
  - model: ` + dir + `/one
    parameters: {weight: 0.6, density: 0.5}
  - model: ` + dir + `/two
    parameters: {weight: 0.4, density: 0.7}
`

	linear := "merge_method: linear\nmodels:\n  - {model: " + dir + "/one, parameters: {weight: 0.3}}\n  - {model: " +
		dir + "/two, parameters: {weight: 0.5}}\n"
	for name, c := range map[string]struct {
		recipe       string
		exact, there bool
	}{
		"linear": {linear, false, true},
		"task_arithmetic": {"merge_method: task_arithmetic\nout_dtype: bfloat16\nparameters: {lambda: 0.8, " +
			"normalize: true}" + inputs, false, true},
		"ties":           {"merge_method: ties" + inputs, true, true},
		"dare_linear":    {"merge_method: dare_linear\nparameters: {rescale: false}" + inputs, false, true},
		"dare_ties":      {"merge_method: dare_ties\nout_dtype: float16" + inputs, false, true},
		"dare_ties mean": {"merge_method: dare_ties\nparameters: {normalize: true}" + inputs, true, false},
		"breadcrumbs":    {"merge_method: breadcrumbs" + inputs, true, false},
	} {
		dev := standin.Open(t)
		host, there := filepath.Join(t.TempDir(), "host"), filepath.Join(t.TempDir(), "there")
		want, err := Models(t.Context(), parse(t, c.recipe), host, Options{Seed: 5, Ties: TieIndex})
		if err != nil {
			t.Fatal(name, err)
		}

		got, err := Models(t.Context(), parse(t, c.recipe), there, Options{Seed: 5, Ties: TieIndex, Device: dev})
		if err != nil {
			t.Fatal(name, err)
		}

		if c.there != (got.OnDevice > 0) || got.OnDevice > got.Tensors || want.OnDevice != 0 {
			t.Errorf("%s: %d of %d tensors on the device", name, got.OnDevice, got.Tensors)
		}
		if got.Job == want.Job {
			t.Errorf("%s: an interrupted merge would continue on another device", name)
		}

		a, b := mergetest.Values(t, there), mergetest.Values(t, host)
		off, unit := 0,
			map[bool]float64{true: 1.0 / (1 << 7), false: 1.0 / (1 << 20)}[strings.Contains(c.recipe, "float16")]

		for tensor, x := range b {
			for i, v := range x {
				if y := a[tensor][i]; y != v {
					off++
					if c.exact || math.Abs(float64(y-v)) > math.Abs(float64(v))*unit+1e-6 {
						t.Fatalf("%s: %s, element %d is %g, want %g", name, tensor, i, y, v)
					}
				}
			}
		}

		if f := device.Fallbacks(dev)["Merge"]; f != 0 {
			t.Errorf("%s: %d merges left to the CPU", name, f)
		}

		t.Logf("%s: %d of %d tensors on the device, %d values off by a rounding", name, got.OnDevice, got.Tensors, off)
	}
}
