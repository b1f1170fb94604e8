//go:build linux && (amd64 || arm64)

package edit

import (
	"context"
	"math"
	"path/filepath"
	"testing"

	devices "github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
	"github.com/modelcompress/compress/lm"
)

// TestGraphics edits on a device that runs the host build of the GPU kernels, and on the host, with the
// same covariance. Passes over the model differ by roundings of float32, which a few steps towards the new
// value, and the solve with a covariance of a condition of about 10⁴, leave below a thousandth of the change.
func TestGraphics(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, 2)
	dev := standin.Open(t)
	there, err := lm.Load(ctx, filepath.Join("..", "..", "testdata", "nano", "base"), dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()

	// Three prompts in two groups: the stand-in is slow, and more would be the same rows again.
	b.x.Templates = [][]string{{"{}"}, {"So far. {}", "Yes. {}"}}
	one, err := b.x.Record(&b.records[0])
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{"rome", "memit", "alphaedit"} {
		hp, err := Defaults(name, b.m.Config())
		if err != nil {
			t.Fatal(err)
		}

		hp.Steps = 3
		change := func(m *lm.Model) []float64 {
			before := downs(t, m)
			e, err := New(m, Options{Method: name, HParams: &hp, Statistics: b.stats})
			if err != nil {
				t.Fatal(err)
			}

			if _, err := e.Apply(ctx, []Encoded{one}, nil); err != nil {
				t.Fatal(name, err)
			}

			after := downs(t, m)
			for i := range after {
				after[i] -= before[i]
			}
			if err := e.Undo(0); err != nil {
				t.Fatal(err)
			}

			e.Close()
			return after
		}

		want, got := change(b.m), change(there)
		off, size := 0.0, 0.0
		for i, v := range want {
			off, size = off+(got[i]-v)*(got[i]-v), size+v*v
		}

		if share := math.Sqrt(off / size); !(share <= 1e-3) {
			t.Errorf("%s: the changes differ by %g of their length", name, share)
		} else {
			t.Logf("%s: the changes differ by %.2g of their length", name, share)
		}
	}

	if f := devices.Fallbacks(dev); len(f) != 0 {
		t.Errorf("left to the host: %v", f)
	}
}
