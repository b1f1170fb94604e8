//go:build linux && (amd64 || arm64)

package optim_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
	"github.com/modelcompress/compress/lm/optim"
)

// there copies a host matrix to a device; back copies one from there to float32.
func there(t *testing.T, dev kernels.Device, m kernels.Mat) kernels.Mat {
	t.Helper()
	b, err := dev.Alloc(m.DType(), m.Len())
	if err == nil {
		err = dev.Upload(b, 0, m.Buf.Bytes())
	}
	if err != nil {
		t.Fatal(err)
	}
	return kernels.MatOf(b, m.Rows, m.Cols)
}

func bytesOf(t *testing.T, dev kernels.Device, m kernels.Mat) []byte {
	t.Helper()
	out := make([]byte, m.Len()*m.DType().Size())
	if err := dev.Download(out, m.Buf, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestDeviceAdamW takes steps on a device and on the host, through a state that is saved and restored in
// between. Steps are rounded one by one on both; a quotient's denominator may be rounded once or twice, which
// is 2⁻²³ of a step.
func TestDeviceAdamW(t *testing.T) {
	dev := standin.Open(t)
	for _, dt := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
		for _, master := range []bool{false, true} {
			o := optim.AdamWOptions{WeightDecay: 0.1, Master: master, Threads: 2}
			host, err := optim.NewAdamW(o)
			if err != nil {
				t.Fatal(err)
			}

			on, err := optim.NewDeviceAdamW(o, dev)
			if err != nil {
				t.Fatal(err)
			}

			rng := rand.New(rand.NewPCG(3, 4))
			const rows, cols = 5, 61
			value, grad := kernels.MatOf(kernels.NewHost(dt, rows*cols), rows, cols),
				kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
			start := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
			for i := range start.Buf.F32() {
				start.Buf.F32()[i] = float32(rng.NormFloat64())
			}

			wide := cpu.New(cpu.Options{}).Ops().Convert
			wide(value, start)

			moved := there(t, dev, value)
			for step := range 4 {
				for i := range grad.Buf.F32() {
					grad.Buf.F32()[i] = float32(rng.NormFloat64())
				}

				p := optim.Param{Name: "w", Value: value, Grad: grad}
				q := optim.Param{Name: "w", Value: moved, Grad: there(t, dev, grad)}
				_, want, err := optim.Clip([]optim.Param{p}, 1, 2)
				if err != nil {
					t.Fatal(err)
				}

				_, got, err := optim.ClipOn(dev, []optim.Param{q}, 1)
				if err != nil || math.Abs(got-want) > 1e-12*want { // float64 sums in another order
					t.Fatalf("clipping %v (%v), want %v", got, err, want)
				}

				s := optim.Step{LR: 0.01, GradScale: want}
				if err := errors.Join(host.Apply(p, s), on.Apply(q, s)); err != nil {
					t.Fatal(err)
				}

				if step == 1 { // go on from a saved state
					if err := on.Fetch(); err != nil {
						t.Fatal(err)
					}

					state := on.State()
					on.Free()
					if on, err = optim.NewDeviceAdamW(o, dev); err == nil {
						err = on.Restore(state)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}

			raw, err := kernels.Wrap(dt, bytesOf(t, dev, moved))
			if err != nil {
				t.Fatal(err)
			}

			a, b := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols),
				kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
			wide(a, kernels.MatOf(raw, rows, cols))
			wide(b, value)

			for i, v := range a.Buf.F32() {
				bound := 1e-6
				if dt != kernels.F32 {
					bound = 0.01 // a unit in the last place of a value near 2, where the step lies near the middle
				}
				if math.Abs(float64(v-b.Buf.F32()[i])) > bound {
					t.Fatalf("%s, master %v: value %d is %g, want %g", dt, master, i, v, b.Buf.F32()[i])
				}
			}

			if err := on.Fetch(); err != nil {
				t.Fatal(err)
			}

			for kind, want := range host.State() {
				got := on.State()[kind]
				if len(got) != len(want) {
					t.Fatalf("%s has %d values, want %d", kind, len(got), len(want))
				}

				for i, v := range got {
					if math.Abs(float64(v-want[i])) > 1e-6 {
						t.Fatalf("%s %d is %g, want %g", kind, i, v, want[i])
					}
				}
			}

			on.Free()
		}
	}
}

// TestDeviceAdamWRefuses: devices of the host make no steps, and a state that is not the parameter's is refused.
func TestDeviceAdamWRefuses(t *testing.T) {
	if _, err := optim.NewDeviceAdamW(optim.AdamWOptions{}, cpu.New(cpu.Options{})); !errors.Is(err, optim.ErrDevice) {
		t.Errorf("on the host: %v", err)
	}

	dev := standin.Open(t)
	on, err := optim.NewDeviceAdamW(optim.AdamWOptions{}, dev)
	if err != nil {
		t.Fatal(err)
	}
	defer on.Free()

	x := there(t, dev, kernels.MatOf(kernels.NewHost(kernels.F32, 6), 2, 3))
	p := optim.Param{Name: "w", Value: x, Grad: x}
	for _, state := range []map[string][]float32{
		{"v.step": {1}, "v.exp_avg": make([]float32, 6), "v.exp_avg_sq": make([]float32, 6)},
		{"w.step": {1}, "w.exp_avg": make([]float32, 5), "w.exp_avg_sq": make([]float32, 6)},
		{"w.step": {1}, "w.exp_avg": make([]float32, 6)},
	} {
		if err := on.Restore(state); err != nil {
			t.Fatal(err)
		}
		if err := on.Apply(p, optim.Step{LR: 1}); !errors.Is(err, optim.ErrState) {
			t.Errorf("state %v: %v", state, err)
		}
	}

	p.Grad = p.Grad.Reshape(3, 2)
	if err := on.Apply(p, optim.Step{LR: 1}); !errors.Is(err, optim.ErrShape) {
		t.Errorf("another shape: %v", err)
	}
}
