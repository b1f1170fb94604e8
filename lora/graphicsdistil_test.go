//go:build linux && (amd64 || arm64)

package lora_test

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
)

// TestGraphicsDistil: a student that learns from a teacher on a device that runs the host build of the graphics
// kernels has the losses of the host, of the likeliest tokens and of all, at a temperature, with the cross-entropy.
func TestGraphicsDistil(t *testing.T) {
	graphics := standin.Open(t)
	data := corpus.New([][]int32{{5, 9, 3, 30, 7, 21}, {8, 1, 2, 29, 4, 11}}, "test")
	load := func(dev kernels.Device, name string) *lm.Model {
		m, err := lm.Load(t.Context(), filepath.Join("testdata", "peft", name), dev, lm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}

	for name, d := range map[string]lora.Distil{
		"likeliest": {Top: 5}, "all": {Top: -1}, "warm": {Top: 5, Temperature: 2, CE: 0.5},
	} {
		losses := func(dev kernels.Device) (list []float64) {
			d := d
			d.Teacher = lora.NewTeacher(load(dev, "base-llama"))
			a, err := lora.Train(t.Context(), load(dev, "base-llamatied"), data,
				lora.Options{Kind: "lora", Rank: 4, Steps: 2, Batch: 2, LR: 1e-3, Distil: &d})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range a.Report().Steps {
				list = append(list, s.Loss)
			}
			return list
		}

		got, want := losses(graphics), losses(cpu.New(cpu.Options{Threads: 2}))
		for i, v := range want {
			if math.Abs(got[i]-v) > 1e-3*v {
				t.Errorf("%s: loss of step %d is %g, want %g", name, i, got[i], v)
			}
		}
	}
}
