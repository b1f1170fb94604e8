package prune

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
)

// BenchmarkMask is the choice of a mask from statistics that are there: scores and selection. SIZE sets the width.
func BenchmarkMask(b *testing.B) {
	n := 1024
	if s, err := strconv.Atoi(os.Getenv("SIZE")); err == nil {
		n = s
	}

	dev, err := device.Open("cpu", device.Options{})
	if err != nil {
		b.Fatal(err)
	}

	rng := rand.New(rand.NewPCG(1, 2))
	w := make([]float32, n*n)
	g := kernels.NewHost(kernels.F16, n*n)
	s := make([]float64, n)

	for i := range w {
		w[i] = float32(rng.NormFloat64())
		g.U16()[i] = kernels.ToF16(float32(rng.ExpFloat64()))
	}

	for j := range s {
		s[j] = rng.ExpFloat64() + .1
	}

	for _, name := range []string{"pruner-zero", "gblm", "wanda", "ria", "wanda-variant"} {
		m, err := MetricByName(name)
		if err != nil {
			b.Fatal(err)
		}

		for _, pattern := range []Pattern{{}, {2, 4}} {
			b.Run(name+" "+pattern.String(), func(b *testing.B) {
				o := Options{Metric: m, Sparsity: .5, Pattern: pattern}
				o.setDefaults()
				k := &walk{site: on(dev), o: o, report: &Report{Blocks: []Block{{Target: .5}}}}
				c := &change{plan: k.plan(lm.Linear{}), in: Inputs{
					Device: dev, W: kernels.MatOf(kernels.WrapF32(w), n, n), G: kernels.MatOf(g, n, n), SumSquares: s,
					Tokens: 1, Sequences: 1,
				}}

				if c.keep, err = k.keepFor(c.in.W); err != nil {
					b.Fatal(err)
				}

				for b.Loop() {
					if err := k.choose(c); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkPrunerZero is a run with gradients, statistics and masks; the ratio is to a forward and a backward
// pass over the same data.
func BenchmarkPrunerZero(b *testing.B) {
	calib := windows(16, 128, 768)
	dev, err := device.Open("cpu", device.Options{})
	if err != nil {
		b.Fatal(err)
	}

	var passes, whole time.Duration
	for b.Loop() {
		m, err := lm.Load(ctx, nano+"base", dev, lm.Options{})
		if err != nil {
			b.Fatal(err)
		}

		start := time.Now()

		for _, ids := range calib.IDs {
			hooks := &lm.Hooks{WeightGrad: func(string, kernels.Mat) error { return nil }}
			if _, err := m.Backward(ctx, [][]int32{ids}, lm.BackwardOptions{Hooks: hooks, Keep: 1 << 30}); err != nil {
				b.Fatal(err)
			}
		}

		middle := time.Now()
		if _, err := Model(ctx, m, calib, Options{Metric: PrunerZero(), Sparsity: .5}); err != nil {
			b.Fatal(err)
		}

		passes, whole = passes+middle.Sub(start), whole+time.Since(middle)
		_ = m.Close()
	}

	b.ReportMetric(whole.Seconds()/passes.Seconds(), "×forward+backward")
}
