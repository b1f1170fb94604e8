//go:build linux && (amd64 || arm64)

package merge

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
	"github.com/modelcompress/compress/safetensors"
)

// TestGraphics merges on a graphics device and on the host. With an election of signs every step is rounded
// alike, so the values are the same, but for the sign of zeros. Elsewhere the host fuses products and sums,
// which the device rounds one by one, and sums that restore norms run in another order: values near 1 are off
// by 1e-6 at most, and then by a unit in the last place of the output's type.
func TestGraphics(t *testing.T) {
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

		writeModel(t, filepath.Join(dir, model), tensors)
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

		if c.there != (got.There > 0) || got.There > got.Tensors || want.There != 0 {
			t.Errorf("%s: %d of %d tensors on the device", name, got.There, got.Tensors)
		}
		if got.Job == want.Job {
			t.Errorf("%s: an interrupted merge would continue on another device", name)
		}

		a, b := numbers(t, there), numbers(t, host)
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
			t.Errorf("%s: %d merges left to the host", name, f)
		}

		t.Logf("%s: %d of %d tensors on the device, %d values off by a rounding", name, got.There, got.Tensors, off)
	}
}

// numbers are the values of all tensors of a folder.
func numbers(t *testing.T, dir string) map[string][]float32 {
	t.Helper()
	d, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	out := map[string][]float32{}
	for _, name := range d.Names() {
		info, _ := d.Info(name)
		err := d.View(name, func(raw []byte) error {
			x := make([]float32, info.Size*8/int64(info.DType.Bits()))
			for i := range x {
				switch info.DType {
				case safetensors.BF16:
					x[i] = kernels.FromBF16(uint16(raw[2*i]) | uint16(raw[2*i+1])<<8)
				case safetensors.F16:
					x[i] = kernels.FromF16(uint16(raw[2*i]) | uint16(raw[2*i+1])<<8)
				default:
					x[i] = math.Float32frombits(
						uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24)
				}
			}

			out[name] = x
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	return out
}

// TestGraphicsConflict measures conflicts on a graphics device and on the host: counts are the same, sums run
// in another order, and products of two differences are made of float32 sums. Metrics agree to 1e-6.
func TestGraphicsConflict(t *testing.T) {
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

		writeModel(t, filepath.Join(dir, model), tensors)
	}

	r := parse(t,
		"merge_method: mediate\nbase_model: "+dir+"/base\nmodels: [{model: "+dir+"/one}, {model: "+dir+
			"/two}, {model: "+dir+"/three}]\n")
	for _, density := range []float64{1, 0.2} {
		dev := standin.Open(t)
		done := int64(0)
		got, err := Conflict(t.Context(), r,
			ConflictOptions{Density: density, Device: dev, Progress: func(p Progress) { done = max(done, p.Done) }})
		if err != nil {
			t.Fatal(err)
		}

		want, err := Conflict(t.Context(), r, ConflictOptions{Density: density})
		if err != nil {
			t.Fatal(err)
		}

		if got.There != 3 || want.There != 0 || len(device.Fallbacks(dev)) != 0 || done != 4*(1<<20+4096+6000+2) {
			t.Errorf("density %g: %d tensors on the device, %v left to the host, progress to %d", density, got.There,
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

// TestGraphicsConflictOfNonFinite leaves what is not finite, in the inputs or in their differences, to the
// host, with its counts.
func TestGraphicsConflictOfNonFinite(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), math.MaxFloat32} {
		dir := t.TempDir()
		for name, x := range handMade {
			x = slices.Clone(x)
			x[0] = -bad
			if name == "m2" {
				x[0] = bad
			}
			writeModel(t, filepath.Join(dir, name), map[string][]float32{"model.layers.0.w": x})
		}

		r := parse(t,
			"merge_method: mediate\nbase_model: "+dir+"/base\nmodels: [{model: "+dir+"/m1}, {model: "+dir+
				"/m2}, {model: "+dir+"/m3}]\n")
		dev := standin.Open(t)
		got, err := Conflict(t.Context(), r, ConflictOptions{AllowNonFinite: true, Device: dev})
		if err != nil {
			t.Fatal(err)
		}

		if got.There != 0 || got.Whole.NonFinite == 0 || device.Fallbacks(dev)["Conflicts"] != 1 {
			t.Errorf("%v: %d tensors on the device, %d differences that are not finite, fallbacks %v", bad, got.There,
				got.Whole.NonFinite, device.Fallbacks(dev))
		}
	}
}

// TestGraphicsMediate routes the same tensors by counts of a device and of the host, and writes the same bytes.
func TestGraphicsMediate(t *testing.T) {
	text := handMadeRecipe(t, "{density: 0.5}")
	host, there := filepath.Join(t.TempDir(), "host"), filepath.Join(t.TempDir(), "there")
	if _, err := Models(t.Context(), parse(t, text), host, Options{}); err != nil {
		t.Fatal(err)
	}

	dev := standin.Open(t)
	if _, err := Models(t.Context(), parse(t, text), there, Options{Device: dev}); err != nil {
		t.Fatal(err)
	}

	a, b := numbers(t, there), numbers(t, host)
	for name, x := range b {
		if !slices.Equal(a[name], x) {
			t.Errorf("%s differs", name)
		}
	}

	if f := device.Fallbacks(dev)["Conflicts"]; f != 0 {
		t.Errorf("%d counts left to the host", f)
	}
}
