//go:build linux && (amd64 || arm64)

package mediate

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/mergetest"
)

// TestGPUConflict measures conflicts on a GPU and on the CPU: counts are the same, sums run
// in another order, and products of two differences are made of float32 sums. Metrics agree to 1e-6.
func TestGPUConflict(t *testing.T) {
	dir, rng := t.TempDir(), rand.New(rand.NewPCG(3, 4))
	for _, model := range []string{"base", "one", "two", "three"} {
		tensors := map[string][]float32{
			"model.layers.0.large": make([]float32, 1<<20+4096),
			"model.layers.1.small": make([]float32, 6000), "model.layers.1.tiny": make([]float32, 2),
		}
		for _, x := range tensors {
			for i := range x {
				x[i] = float32(i % 7)
				if model != "base" && rng.IntN(3) > 0 {
					x[i] += float32(rng.NormFloat64()) / 4
				}
			}
		}

		mergetest.WriteModel(t, filepath.Join(dir, model), tensors)
	}

	r := parse(t,
		"merge_method: mediate\nbase_model: "+dir+"/base\nmodels: [{model: "+dir+"/one}, {model: "+dir+
			"/two}, {model: "+dir+"/three}]\n")
	for _, density := range []float64{1, 0.2} {
		dev := standin.Open(t)
		done := int64(0)
		got, err := Conflict(t.Context(), r,
			ConflictOptions{
				Density: density, Device: dev,
				Progress: func(p merge.Progress) { done = max(done, p.Done) },
			})
		if err != nil {
			t.Fatal(err)
		}

		want, err := Conflict(t.Context(), r, ConflictOptions{Density: density})
		if err != nil {
			t.Fatal(err)
		}

		if got.OnDevice != 3 || want.OnDevice != 0 || len(device.Fallbacks(dev)) != 0 || done != 4*(1<<20+4096+6000+2) {
			t.Errorf("density %g: %d tensors on the device, %v left to the CPU, progress to %d", density, got.OnDevice,
				device.Fallbacks(dev), done)
		}

		for i, w := range append(want.Tensors, want.Whole) {
			g := append(got.Tensors, got.Whole)[i]
			if g.Totals != w.Totals {
				t.Errorf("density %g, %q: counted %+v, want %+v", density, w.Name, g.Totals, w.Totals)
			}

			for _, m := range Metrics() {
				x, _ := g.Of(m)
				if y, _ := w.Of(m); math.Abs(x-y) > 1e-6 {
					t.Errorf("density %g, %q: %s is %v, want %v", density, w.Name, m, x, y)
				}
			}

			for k, shift := range w.Shift {
				if math.Abs(g.Shift[k]-shift) > 1e-6*shift {
					t.Errorf("density %g, %q: shift %d is %v, want %v", density, w.Name, k, g.Shift[k], shift)
				}
			}
		}
	}
}

// TestGPUConflictOfNonFinite leaves what is not finite, in the inputs or in their differences, to the
// host, with its counts.
func TestGPUConflictOfNonFinite(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), math.MaxFloat32} {
		dir := t.TempDir()
		for name, x := range handMade {
			x = slices.Clone(x)
			x[0] = -bad
			if name == "m2" {
				x[0] = bad
			}
			mergetest.WriteModel(t, filepath.Join(dir, name), map[string][]float32{"model.layers.0.w": x})
		}

		r := parse(t,
			"merge_method: mediate\nbase_model: "+dir+"/base\nmodels: [{model: "+dir+"/m1}, {model: "+dir+
				"/m2}, {model: "+dir+"/m3}]\n")
		dev := standin.Open(t)
		got, err := Conflict(t.Context(), r, ConflictOptions{AllowNonFinite: true, Device: dev})
		if err != nil {
			t.Fatal(err)
		}

		if got.OnDevice != 0 || got.Whole.NonFinite == 0 || device.Fallbacks(dev)["Conflicts"] != 1 {
			t.Errorf("%v: %d tensors on the device, %d differences that are not finite, fallbacks %v", bad,
				got.OnDevice, got.Whole.NonFinite, device.Fallbacks(dev))
		}
	}
}

// TestGPUMediate routes the same tensors by counts of a GPU and of the CPU, and writes the same bytes.
func TestGPUMediate(t *testing.T) {
	text := handMadeRecipe(t, "{density: 0.5}")
	host, there := filepath.Join(t.TempDir(), "host"), filepath.Join(t.TempDir(), "there")
	if _, err := models(t.Context(), parse(t, text), host, merge.Options{}); err != nil {
		t.Fatal(err)
	}

	dev := standin.Open(t)
	if _, err := models(t.Context(), parse(t, text), there, merge.Options{Device: dev}); err != nil {
		t.Fatal(err)
	}

	a, b := mergetest.Values(t, there), mergetest.Values(t, host)
	for name, x := range b {
		if !slices.Equal(a[name], x) {
			t.Errorf("%s differs", name)
		}
	}

	if f := device.Fallbacks(dev)["Conflicts"]; f != 0 {
		t.Errorf("%d counts left to the CPU", f)
	}
}
