//go:build linux && (amd64 || arm64)

package lora_test

import (
	"context"
	"errors"
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
)

// TestGraphicsTune trains all parameters on a device that runs the host build of the graphics kernels, where values, gradients and state stay:
// in one go, interrupted and resumed, held and fused. Losses are those of the host but for roundings, which three steps do not amplify
// beyond 1e-3; a run that is resumed has the same bits.
func TestGraphicsTune(t *testing.T) {
	graphics := standin.Open(t)
	data := corpus.New([][]int32{{5, 9, 3, 40, 7, 21}, {8, 1, 2, 30, 4, 11}}, "test")
	for name, o := range map[string]lora.Options{
		"held": {Steps: 3, Batch: 1, LR: 1e-3, Clip: 1}, "fused": {Steps: 3, Batch: 1, LR: 1e-3},
	} {
		losses := func(dev kernels.Device, o lora.Options, until int) []float64 {
			m, err := lm.Load(t.Context(), filepath.Join("..", "testdata", "nano", "base"), dev, lm.Options{})
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
		losses(graphics, o, 2)
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
