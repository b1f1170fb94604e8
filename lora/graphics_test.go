//go:build linux && (amd64 || arm64)

package lora_test

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
	"github.com/modelcompress/compress/safetensors"
)

// TestGraphicsTune trains all parameters on a device that runs the host build of the graphics kernels, where
// values, gradients and state stay: in one go, interrupted and resumed, held and fused. Losses are those of the
// host but for roundings, which two steps do not amplify beyond 1e-3; a run that is resumed has the same
// bits.
func TestGraphicsTune(t *testing.T) {
	graphics := standin.Open(t)
	data := corpus.New([][]int32{{5, 9, 3, 30, 7, 21}, {8, 1, 2, 29, 4, 11}}, "test")
	for name, o := range map[string]lora.Options{
		"held": {Steps: 2, Batch: 1, LR: 1e-3, Clip: 1}, "fused": {Steps: 2, Batch: 1, LR: 1e-3},
	} {
		losses := func(dev kernels.Device, o lora.Options, until int) []float64 {
			m, err := lm.Load(t.Context(), filepath.Join("testdata", "peft", "base-llama"), dev, lm.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			o.Each = func(s lora.Step) {
				if s.Step+1 == until {
					cancel()
				}
			}

			r, err := lora.Tune(ctx, m, data, o)
			if until > 0 && errors.Is(err, context.Canceled) {
				return nil
			}

			if err != nil {
				t.Fatal(err)
			}

			var list []float64
			for _, s := range r.Steps {
				list = append(list, s.Loss)
			}

			return list
		}

		got, want := losses(graphics, o, 0), losses(cpu.New(cpu.Options{Threads: 2}), o, 0)
		o.StateDir = t.TempDir()
		losses(graphics, o, 1)
		o.Resume = true
		if resumed := losses(graphics, o, 0); !slices.Equal(resumed, got) {
			t.Errorf("%s: resumed, the losses are %v, not %v", name, resumed, got)
		}

		for i, v := range want {
			if math.Abs(got[i]-v) > 1e-3*v {
				t.Errorf("%s: loss of step %d is %g, want %g", name, i, got[i], v)
			}
		}
	}

	if f := device.Fallbacks(graphics); len(f) != 0 {
		t.Errorf("left to the host: %v", f)
	}
}

// TestGraphicsTrain trains adapters on a device that runs the host build of the graphics kernels, where
// parameters, gradients and state stay, and on the host. Products of activations are summed in other orders;
// AdamW's first steps are the learning rate in the direction of the sign, so a gradient near zero may move a
// value the other way: values agree to a thousandth of what the steps move them in the mean, losses to 1e-3.
// A run that is resumed has the same bits, and the state in its folder has the names and the sizes of the
// host's.
func TestGraphicsTrain(t *testing.T) {
	graphics := standin.Open(t)
	data := corpus.New([][]int32{{5, 9, 3, 30, 7, 21}, {8, 1, 2, 29, 4, 11}}, "test")
	for name, o := range map[string]lora.Options{
		"lora":        {Rank: 4, Alpha: 12, Clip: 1, WeightDecay: 0.1},
		"lora rank 1": {Rank: 1, Alpha: 1},
		"mos":         {Kind: "mos", Rank: 4, EquivalentRank: 2, Shards: 2, Private: 1, Alpha: 16, Clip: 1},
	} {
		t.Run(name, func(t *testing.T) {
			o.Steps = 2
			o.Batch = 1
			o.LR = 1e-3
			o.Seed = 4
			train := func(dev kernels.Device, o lora.Options, until int) (*lora.Adapter, []float64) {
				m, err := lm.Load(t.Context(), filepath.Join("testdata", "peft", "base-llama"), dev, lm.Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()

				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()

				o.Each = func(s lora.Step) {
					if s.Step+1 == until {
						cancel()
					}
				}

				a, err := lora.Train(ctx, m, data, o)
				if until > 0 && errors.Is(err, context.Canceled) {
					return nil, nil
				}

				if err != nil {
					t.Fatal(err)
				}

				var list []float64
				for _, s := range a.Report().Steps {
					list = append(list, s.Loss)
				}

				return a, list
			}

			there, got := train(graphics, o, 0)
			host, want := train(cpu.New(cpu.Options{Threads: 2}), o, 0)
			for i, v := range want {
				if math.Abs(got[i]-v) > 1e-3*v {
					t.Errorf("loss of step %d is %g, want %g", i, got[i], v)
				}
			}

			a, b := values(t, there), values(t, host)
			sum, n := 0.0, 0
			for tensor, x := range b {
				for i, v := range x {
					sum, n = sum+math.Abs(float64(v-a[tensor][i])), n+1
				}
			}

			if mean := sum / float64(n); !(mean <= 1e-3*float64(o.Steps)*o.LR) {
				t.Errorf("values differ by %g in the mean", mean)
			} else {
				t.Logf("%d values differ by %g in the mean", n, mean)
			}

			o.StateDir, o.SaveEvery = t.TempDir(), 1
			train(graphics, o, 1)
			kept := states(t, o.StateDir)
			o.Resume = true
			resumed, _ := train(graphics, o, 0)
			if !maps.EqualFunc(values(t, resumed), a, slices.Equal[[]float32]) {
				t.Error("resumed, the values are others")
			}

			o.StateDir, o.Resume = t.TempDir(), false
			train(cpu.New(cpu.Options{Threads: 2}), o, 1)
			if plain := states(t, o.StateDir); len(kept) == 0 || !maps.Equal(kept, plain) {
				t.Errorf("the state holds %v, on the host %v", kept, plain)
			}
		})
	}

	if f := device.Fallbacks(graphics); len(f) != 0 {
		t.Errorf("left to the host: %v", f)
	}
}

// values are the tensors of an adapter.
func values(t *testing.T, a *lora.Adapter) map[string][]float32 {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "adapter")
	if err := a.Save(dir, false); err != nil {
		t.Fatal(err)
	}

	d, err := safetensors.Open(filepath.Join(dir, "adapter_model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	all := map[string][]float32{}
	for _, name := range d.Names() {
		if info, _ := d.Info(name); info.DType != safetensors.F32 {
			continue
		}

		err := d.View(name, func(raw []byte) error {
			for at := 0; at < len(raw); at += 4 {
				all[name] = append(all[name], math.Float32frombits(binary.LittleEndian.Uint32(raw[at:])))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	return all
}

// states are the sizes of the tensors of a training's newest state by their names.
func states(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}

	f, err := safetensors.Open(slices.Max(files))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	sizes := map[string]int64{}
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		sizes[name] = info.Size
	}

	return sizes
}
