package swaps

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/cputime"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/obs"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
)

// BenchmarkSwaps is PASSES (1) of swaps from Wanda's mask of half of the weights, beside SparseGPT's sweep of the same
// matrix without its factorisation: sweeps/op is the
// ratio of their processor times. SIZE sets the width.
func BenchmarkSwaps(b *testing.B) {
	n := 1024
	if s, err := strconv.Atoi(os.Getenv("SIZE")); err == nil {
		n = s
	}

	passes := 1
	if s, err := strconv.Atoi(os.Getenv("PASSES")); err == nil {
		passes = s
	}

	dev, err := device.Open("cpu", device.Options{})
	if err != nil {
		b.Fatal(err)
	}
	ops, threads := dev.Ops(), dev.Info().Threads
	mul := func(dst, x, w kernels.Mat) { ops.MatMulNN(dst, x, w, kernels.MatMul{Accumulate: true}) }

	random := rand.New(rand.NewPCG(1, 2))
	w, x := matrix(kernels.F32, n, n), matrix(kernels.F32, n+n/2, n)
	for _, m := range []kernels.Mat{w, x} {
		for i := range m.Buf.F32() {
			m.Buf.F32()[i] = float32(random.NormFloat64())
		}
	}
	// Inputs that differ in size, and are alike in part, as those of a model are.
	norm := make([]float32, n)
	for i := range x.Rows {
		common := float32(random.NormFloat64())
		for k := range n {
			x.RowF32(i)[k] = (x.RowF32(i)[k] + common) * float32(1+k%7)
			norm[k] += x.RowF32(i)[k] * x.RowF32(i)[k]
		}
	}
	gram := matrix(kernels.F32, n, n)
	ops.MatMulTN(gram, x, x, kernels.MatMul{})
	u := matrix(kernels.F32, n, n)
	if _, err := (linalg.Solver{Threads: threads}).DampedInverseFactor(u, gram, 0); err != nil {
		b.Fatal(err)
	}

	for _, m := range []int{0, 4} {
		name := map[int]string{0: "unstructured", 4: "2:4"}[m]
		b.Run(name, func(b *testing.B) {
			var sweep, swap time.Duration
			for b.Loop() {
				work := matrix(kernels.F32, n, n)
				copy(work.Buf.F32(), w.Buf.F32())
				keep := matrix(kernels.U8, n, n)
				s := obs.Job{W: work, U: u, Mask: keep, Threads: threads, Mul: mul, N: m / 2, M: m}
				if m == 0 {
					s.Choose = func(mask, score kernels.Mat) error {
						ops.SelectAll(mask, kernels.Score{X: score, Raw: true}, mask.Len()/2)
						return nil
					}
				}
				start := cputime.Process()
				if _, err := s.Run(); err != nil {
					b.Fatal(err)
				}
				sweep += cputime.Process() - start

				wanda(w, keep, norm, m)
				start = cputime.Process()
				r, err := Job{W: w, Keep: keep, Gram: gram, M: m, Passes: passes, Threads: threads, Mul: mul}.Run()
				if err != nil {
					b.Fatal(err)
				}
				swap += cputime.Process() - start
				var before, after float64
				for i := range r.Before {
					before, after = before+r.Before[i], after+r.After[i]
				}
				b.ReportMetric(float64(r.Swaps)/float64(n), "swaps/row")
				b.ReportMetric(after/before, "error-left")
			}
			b.ReportMetric(swap.Seconds()/sweep.Seconds(), "sweeps/op")
			b.ReportMetric(swap.Seconds()/float64(b.N), "swaps-cpu-s/op")
		})
	}
}

// wanda keeps the better half of each row, or of each group.
func wanda(w, keep kernels.Mat, norm []float32, m int) {
	if m == 0 {
		m = w.Cols
	}
	for i := range w.Rows {
		for lo := 0; lo < w.Cols; lo += m {
			order := make([]int, m)
			for k := range order {
				order[k] = lo + k
			}
			score := func(k int) float32 { v := w.RowF32(i)[k]; return v * v * norm[k] }
			slices.SortFunc(order, func(a, b int) int {
				switch {
				case score(a) < score(b):
					return -1
				case score(a) > score(b):
					return 1
				}
				return 0
			})
			for at, k := range order {
				keep.RowU8(i)[k] = 0
				if at >= m/2 {
					keep.RowU8(i)[k] = 1
				}
			}
		}
	}
}
