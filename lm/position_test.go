package lm

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// late collects the gradients of hidden states.
func late(t testing.TB, m *Model, ids [][]int32, o BackwardOptions) map[int][]float32 {
	t.Helper()
	all := map[int][]float32{}
	o.Hooks = &Hooks{HiddenGrad: func(state int, g kernels.Mat) error {
		all[state] = values(g)
		return nil
	}}

	if _, err := m.Backward(context.Background(), ids, o); err != nil {
		t.Fatal(err)
	}

	return all
}

// From one position on, the gradients of all states are those of the whole pass, and zeros before it. The
// tolerance is F32 rounding: products of fewer rows may add in another order.
func TestGradientsFromPosition(t *testing.T) {
	ids := tokens(19, 37, 60)
	tinyModels(t, func(t *testing.T, config map[string]any) {
		m := load(t, recipe{config: config, seed: 24, std: 0.2}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})
		c := m.Config().Hidden
		want := late(t, m, ids, BackwardOptions{})
		for _, from := range []int{1, 17, 40, 59} {
			for _, keep := range []int64{0, 1 << 40} {
				got := late(t, m, ids, BackwardOptions{From: from, Keep: keep})
				for state, g := range want {
					if largest(got[state][:from*c]) != 0 {
						t.Errorf("from %d: state %d has gradients before", from, state)
					}
					if d := distance(got[state][from*c:], g[from*c:]); d > 1e-5*largest(g) {
						t.Errorf("from %d: state %d is off by %g of %g", from, state, d, largest(g))
					}
				}
			}
		}
	})
}

func TestGradientsFromPositionRefuses(t *testing.T) {
	m := load(t, recipe{config: tiny()["llama"]}.write(t, t.TempDir()), cpuDevice(t, 1), Options{})
	hooks := &Hooks{WeightGrad: func(string, kernels.Mat) error { return nil }}
	for name, c := range map[string]struct {
		ids [][]int32
		o   BackwardOptions
	}{
		"negative":      {tokens(1, 37, 5), BackwardOptions{From: -1}},
		"too far":       {tokens(1, 37, 5), BackwardOptions{From: 5}},
		"two sequences": {tokens(1, 37, 5, 5), BackwardOptions{From: 1}},
		"parameters":    {tokens(1, 37, 5), BackwardOptions{From: 1, Hooks: hooks}},
	} {
		if _, err := m.Backward(context.Background(), c.ids, c.o); !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BenchmarkBackwardFrom computes the gradient of the output of block 2 of 6 in 512 tokens: at all positions,
// and at the last eighth.
func BenchmarkBackwardFrom(b *testing.B) {
	m := benchModel(b, safetensors.F32, Options{}, 1)
	ids := tokens(1, 4096, 512)
	best := [3]time.Duration{time.Hour, time.Hour, time.Hour}
	for b.Loop() {
		for i, o := range []BackwardOptions{{}, {From: 448}} {
			o.Keep, o.WantHidden = 1<<40, func(s int) bool { return s == 2 }
			o.Hooks = &Hooks{HiddenGrad: func(int, kernels.Mat) error { return nil }}
			before := cpuTime()
			if _, err := m.Backward(context.Background(), ids, o); err != nil {
				b.Fatal(err)
			}

			best[i] = min(best[i], cpuTime()-before)
		}

		before := cpuTime()
		if _, err := m.Forward(context.Background(), ids, ForwardOptions{}); err != nil {
			b.Fatal(err)
		}

		best[2] = min(best[2], cpuTime()-before)
	}

	b.ReportMetric(best[0].Seconds(), "all-cpu-s")
	b.ReportMetric(best[1].Seconds(), "eighth-cpu-s")
	b.ReportMetric(best[2].Seconds(), "forward-cpu-s")
}
