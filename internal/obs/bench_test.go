package obs

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
)

// BenchmarkSparseGPT is a whole matrix with its Hessian given: factorisation and sweep. SIZE sets the width.
func BenchmarkSparseGPT(b *testing.B) {
	n := 1024
	if s, err := strconv.Atoi(os.Getenv("SIZE")); err == nil {
		n = s
	}

	dev, err := device.Open("cpu", device.Options{})
	if err != nil {
		b.Fatal(err)
	}

	ops := dev.Ops()
	x := random(n+n/2, n)
	w := random(n, n)
	h := kernels.MatOf(kernels.NewHost(kernels.F32, n*n), n, n)
	ops.MatMulTN(h, x, x, kernels.MatMul{})

	mul := func(dst, x, w kernels.Mat) { ops.MatMulNN(dst, x, w, kernels.MatMul{Accumulate: true}) }
	for _, pattern := range []string{"unstructured", "2:4"} {
		b.Run(pattern, func(b *testing.B) {
			var factor time.Duration
			for b.Loop() {
				start := time.Now()
				u, work := kernels.MatOf(kernels.NewHost(kernels.F32, n*n), n, n),
					kernels.MatOf(kernels.NewHost(kernels.F32, n*n), n, n)
				copy(work.Buf.F32(), w.Buf.F32())
				if _, err := (linalg.Solver{Threads: dev.Info().Threads}).DampedInverseFactor(u, h, 0); err != nil {
					b.Fatal(err)
				}

				factor += time.Since(start)
				j := Job{
					W: work, U: u, Mask: kernels.MatOf(kernels.NewHost(kernels.U8, n*n), n, n),
					Threads: dev.Info().Threads, Mul: mul,
				}

				if pattern == "2:4" {
					j.N, j.M = 2, 4
				} else {
					j.Choose = func(mask, score kernels.Mat) error {
						ops.SelectAll(mask, kernels.Score{X: score, Raw: true}, mask.Len()/2)
						return nil
					}
				}

				if _, err := j.Run(); err != nil {
					b.Fatal(err)
				}
			}

			b.ReportMetric(factor.Seconds()/float64(b.N), "factor-s/op")
		})
	}
}

func random(rows, cols int) kernels.Mat {
	rng := rand.New(rand.NewPCG(1, uint64(rows)))
	m := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
	for i := range m.Buf.F32() {
		m.Buf.F32()[i] = float32(rng.NormFloat64())
	}
	return m
}
