package lm

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// gradients runs a backward pass and copies what it delivers.
func gradients(t testing.TB, m *Model, ids [][]int32, o BackwardOptions) (map[string][]float32, *Result) {
	t.Helper()
	all := map[string][]float32{}
	if o.Hooks == nil {
		o.Hooks = &Hooks{}
	}
	o.Hooks.WeightGrad = func(name string, g kernels.Mat) error {
		if all[name] != nil {
			t.Errorf("%s is delivered twice", name)
		}
		all[name] = values(g)
		return nil
	}
	r, err := m.Backward(context.Background(), ids, o)
	if err != nil {
		t.Fatal(err)
	}
	return all, r
}

// Every gradient of every model of the oracle, on both host devices.
func TestGradOracle(t *testing.T) {
	root := oracleDir(t, "models")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if _, err := os.Stat(filepath.Join(dir, "oracle.safetensors")); err != nil {
			continue
		}
		t.Run(e.Name(), func(t *testing.T) {
			want := openExpected(t, filepath.Join(dir, "oracle"))
			devices(t, func(t *testing.T, dev kernels.Device) {
				checkGradients(t, load(t, dir, dev, Options{}), want)
			})
		})
	}
}

// checkGradients compares with the tolerance of the oracle's README: 1e-4 of the tensor's largest value, and 1e-6 of the
// largest of all for tensors whose true gradient is zero. The noise of float32 is 3e-6.
func checkGradients(t *testing.T, m *Model, want *expected) {
	top, count := 0.0, 0
	for _, name := range want.file.Names() {
		if strings.HasPrefix(name, "grad.") {
			top = max(top, largest(want.floats(t, name)))
			count++
		}
	}
	if count == 0 {
		t.Skip("the oracle has no gradients")
	}
	got, r := gradients(t, m, want.ids(t, "input_ids"), BackwardOptions{})
	if math.Abs(r.Loss-want.Loss) > tolLoss {
		t.Errorf("loss %.9f, want %.9f", r.Loss, want.Loss)
	}
	if len(got) != count {
		t.Errorf("%d gradients, want %d", len(got), count)
	}
	for name, g := range got {
		w := want.floats(t, "grad."+name)
		limit := 1e-4*largest(w) + 1e-6*top
		if d := distance(g, w); !(d <= limit) {
			t.Errorf("%s: off by %.3g, more than %.3g (largest %.3g)", name, d, limit, largest(w))
		}
	}
}

func largest(x []float32) float64 {
	top := 0.0
	for _, v := range x {
		top = max(top, math.Abs(float64(v)))
	}
	return top
}

// distance is the largest difference; not a number where one is.
func distance(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.NaN()
	}
	worst := 0.0
	for i, v := range a {
		if d := math.Abs(float64(v) - float64(b[i])); !(d <= worst) {
			worst = d
		}
	}
	return worst
}
