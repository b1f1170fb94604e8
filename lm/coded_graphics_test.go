//go:build linux && (amd64 || arm64)

package lm

import (
	"maps"
	"math"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/weights/weightstest"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
)

// TestKeptDevice: the codes are what lies on a device, and what its own kernels compute with.
func TestKeptDevice(t *testing.T) {
	dev := standin.Open(t)
	ids := tokens(2, 768, 12, 3)
	q4, _ := weightstest.GGUFOf(t, wide(t), func(string) gguf.Type { return gguf.Q4_K })
	words, _ := weightstest.Quantise(t, nanoBase, "awq")
	for _, path := range []string{q4, words} {
		got, want := load(t, path, dev, Options{}), load(t, path, cpuDevice(t, 2), Options{})
		if r := got.Residence(); !maps.Equal(r.Kept, want.Residence().Kept) || len(r.Kept) == 0 {
			t.Errorf("%s: %v", path, r)
		}

		a, b := forward(t, got, ids, ForwardOptions{}), forward(t, want, ids, ForwardOptions{})
		if gap := math.Abs(a.Loss - b.Loss); gap > pathOf(want, 12).Logits()*b.Loss {
			t.Errorf("%s: loss %v, on the host %v", path, a.Loss, b.Loss)
		}
		if _, err := got.MutableParam(got.Linears(0)[0].Name); err != nil {
			t.Fatal(err)
		}
		got.ReleaseBlock(1, false)
		again := forward(t, got, ids, ForwardOptions{})
		if math.Abs(again.Loss-a.Loss) > pathOf(want, 12).Logits()*a.Loss {
			t.Errorf("%s: loss %v after a change of nothing, before %v", path, again.Loss, a.Loss)
		}
	}
	if missed := device.Fallbacks(dev); len(missed) > 0 {
		t.Errorf("the host computed %v", missed)
	}
}
