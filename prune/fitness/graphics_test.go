//go:build linux && (amd64 || arm64)

package fitness

import (
	"context"
	"math"
	"path/filepath"
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
// masks, and on the host. The errors of blocks agree to 1 %: activations differ by roundings, which move a few
// weights across the cut. A search compiles many formulas, of which few stay loaded.
func TestGraphics(t *testing.T) {
	dev := standin.Open(t)
	small := corpus.New([][]int32{{5, 9, 3, 40, 7, 21}, {8, 1, 2, 30, 11, 4}}, "test")
	subject := func(name string) Subject {
		s := subjectOf(t, name, 2)
		s.Calib = small
		s.Search = small
		s.Select = small
		s.Test = small
		s.TestCalib = small
		return s
	}

	host, there := subject("base"), subject("base")
	there.Open = func(ctx context.Context) (*lm.Model, error) {
		return lm.Load(ctx, filepath.Join(nano, "base"), dev, lm.Options{})
	}

	o := Options{Settings: settings()[1:], Blocks: 1, Windows: 1}
	a, b := judge(t, o, there), judge(t, o, host)
	for _, metric := range []string{"expr:W * sqrt(X)", "expr:log(W) * mms(G) + X"} {
		got, want := measure(t, a, Layers, metric), measure(t, b, Layers, metric)
		for i, v := range want.Values {
			if math.Abs(got.Values[i]-v) > 0.01*v {
				t.Errorf("%s, %v: %g, want %g", metric, o.Settings[i], got.Values[i], v)
			}
		}
	}

	got, want := measure(t, a, Test, "expr:log(W) + X"), measure(t, b, Test, "expr:log(W) + X")
	if len(got.NearTies) != len(o.Settings) || want.NearTies != nil || slices.Max(got.NearTies) == 0 {
		t.Errorf("%v near ties for %d cases, on the host %v", got.NearTies, len(o.Settings), want.NearTies)
	}

	own, _ := kernels.As[*cuda.Device](dev)
	if n := own.Programs(); n > 64 {
		t.Errorf("%d formulas are loaded", n)
	}
	if f := device.Fallbacks(dev); len(f) != 0 {
		t.Errorf("left to the host: %v", f)
	}
}
