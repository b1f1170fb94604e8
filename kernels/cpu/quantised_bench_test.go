package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// BenchmarkQuantised times products with quantised weights: 512 rows of x, and a single one, where it is memory that
// counts, with a weight larger than the caches. It reports the rate of the best call, and of a single row the share of
// the bandwidth: calls take turns with reads of as many bytes by as many threads, the best of which is the limit.
func BenchmarkQuantised(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, threads := range []int{1, 2} {
		d := New(Options{Threads: threads})
		for _, f := range kernels.QuantFormats() {
			for _, s := range []struct{ m, n, k int }{{1, 16384, 4096}, {512, 1536, 1536}} {
				w := randomQuantised(rng, f, s.n, s.k, kernels.NewHost)
				x := randomMat(rng, kernels.F32, s.m, s.k, 0)
				dst := newMat(kernels.F32, s.m, s.n, 0)
				for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
					b.Run(fmt.Sprintf("%s-%s-%dx%dx%d/threads=%d", f, p, s.m, s.n, s.k, threads), func(b *testing.B) {
						best, read := time.Hour, time.Hour
						for b.Loop() {
							best = min(best, took(func() {
								d.ops.MatMulQuantised(dst, x, w, kernels.MatMul{Precision: p})
							}))
							if s.m == 1 {
								read = min(read, took(func() { readAll(d, w.Data.Buf.Bytes()) }))
							}
						}

						ns := float64(best.Nanoseconds())
						b.ReportMetric(2*float64(s.m*s.n*s.k)/ns, "GFLOP/s")
						if s.m == 1 {
							b.ReportMetric(float64(w.SizeBytes())/ns, "GB/s")
							b.ReportMetric(100*read.Seconds()/best.Seconds(), "%bandwidth")
						}
					})
				}
			}
		}
	}
}

// took is how long f takes.
func took(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// readAll reads memory with all threads of a device.
func readAll(d *Device, p []byte) {
	const part = 1 << 20
	d.parallel(len(p)/part, func(i int) { readStream(d.isa, unsafe.Pointer(&p[i*part]), part) })
}

// BenchmarkExactRows times exact products of few rows with quantised weights, of heads and layers of a small model and
// of a larger one, and reports the rate and the time of the best call.
func BenchmarkExactRows(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, threads := range []int{1, 2} {
		d := New(Options{Threads: threads})
		for _, f := range kernels.QuantFormats() {
			for _, s := range []struct{ n, k int }{{49152, 576}, {16384, 1536}, {8192, 4096}} {
				w := randomQuantised(rng, f, s.n, quantisedColumns(f, s.k), kernels.NewHost)
				for _, m := range []int{1, 2, 3, 4, 8, 16} {
					x, dst := randomMat(rng, kernels.F32, m, w.Cols, 0), newMat(kernels.F32, m, s.n, 0)
					b.Run(fmt.Sprintf("%s-%dx%dx%d/threads=%d", f, m, s.n, s.k, threads), func(b *testing.B) {
						best := time.Hour
						for b.Loop() {
							best = min(best, took(func() { d.ops.MatMulQuantised(dst, x, w, kernels.MatMul{}) }))
						}
						b.ReportMetric(2*float64(m*s.n*w.Cols)/float64(best.Nanoseconds()), "GFLOP/s")
						b.ReportMetric(float64(best.Microseconds())/1000, "ms")
					})
				}
			}
		}
	}
}
