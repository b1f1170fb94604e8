//go:build linux && (amd64 || arm64)

package fitness

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// TestGraphics judges formulas on a device that runs the host build of the graphics kernels, which scores and
// masks, and on the host. The model is small, since the device's stand-in is slow. The errors of blocks agree to 1 %:
// activations differ by roundings, which move a few weights across the cut. A search compiles many formulas, of which
// few stay loaded.
func TestGraphics(t *testing.T) {
	dev, host := standin.Open(t), cpu(t, 2)
	dir := tiny(t)
	ids := corpus.New([][]int32{{5, 9, 3, 40, 7, 21}, {8, 1, 2, 30, 11, 4}}, "test")
	subject := func(dev kernels.Device) Subject {
		return Subject{
			Name: "tiny", Calib: ids, Search: ids, Select: ids, Test: ids, TestCalib: ids,
			Open: func(ctx context.Context) (*lm.Model, error) { return lm.Load(ctx, dir, dev, lm.Options{}) },
		}
	}

	o := Options{Settings: settings()[1:], Blocks: 1, Windows: 1}
	a, b := judge(t, o, subject(dev)), judge(t, o, subject(host))
	for _, metric := range []string{"expr:W * sqrt(X)", "expr:log(W) * mms(G) + X"} {
		got, want := measure(t, a, Layers, metric), measure(t, b, Layers, metric)
		for i, v := range want.Values {
			if math.Abs(got.Values[i]-v) > 0.01*v {
				t.Errorf("%s, %v: %g, want %g", metric, o.Settings[i], got.Values[i], v)
			}
		}
	}

	// Without what reaches the inputs, weights of one magnitude tie, of which there are many in BF16.
	tied := int64(0)
	for _, metric := range []string{"expr:log(W) + X", "expr:log(W) + Wr1"} {
		got, want := measure(t, a, Test, metric), measure(t, b, Test, metric)
		if len(got.NearTies) != len(o.Settings) || want.NearTies != nil {
			t.Fatalf("%s: near ties %v of %d cases, on the host %v", metric, got.NearTies, len(o.Settings),
				want.NearTies)
		}
		tied = slices.Max(got.NearTies)
	}
	if tied == 0 {
		t.Error("equal weights are no near ties")
	}

	own, _ := kernels.As[*cuda.Device](dev)
	if n := own.Programs(); n > 64 {
		t.Errorf("%d formulas are loaded", n)
	}
	if f := device.Fallbacks(dev); len(f) != 0 {
		t.Errorf("left to the host: %v", f)
	}
}
