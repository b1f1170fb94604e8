package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/isa"
	"github.com/modelcompress/compress/kernels"
)

// benchThreads is what the benchmarks run on.
var benchThreads = []int{1, 2}

// BenchmarkMatMul measures x·Wᵀ at the shapes of the 21.9M-parameter Llama and at the square shape of the
// comparison with OpenBLAS; names are rows×out×in.
func BenchmarkMatMul(b *testing.B) {
	shapes := [][3]int{
		{512, 2048, 2048},
		{1024, 512, 512},
		{1024, 256, 512},
		{1024, 1408, 512},
		{1024, 4096, 512},
		{1024, 512, 1408},
		{64, 2048, 2048},
		{32, 2048, 2048},
		{16, 2048, 2048},
	}
	kinds := []struct {
		name string
		t    kernels.DType
		p    kernels.Precision
	}{
		{"f32", kernels.F32, kernels.Exact},
		{"bf16exact", kernels.BF16, kernels.Exact},
		{"bf16fast", kernels.BF16, kernels.Fast},
	}

	for _, disable := range []string{"", "amx", "amx,avx512bf16", "avx512"} {
		for _, kind := range kinds {
			for _, s := range shapes {
				var c productCase
				var dst kernels.Mat
				for _, threads := range benchThreads {
					name := fmt.Sprintf("%s/%dx%dx%d/without=%s/threads=%d", kind.name, s[0], s[1], s[2],
						strings.ReplaceAll(disable, ",", "+"), threads)
					b.Run(name, func(b *testing.B) {
						if dst.IsZero() {
							c = benchCase(kind.t, s)
							c.o.Precision = kind.p
							dst = kernels.MatOf(kernels.NewHost(kernels.F32, c.m*c.n), c.m, c.n)
						}

						d := deviceWith(detect(disable), threads)
						c.run(d, dst)
						for b.Loop() {
							c.run(d, dst)
						}

						b.ReportMetric(2e-9*float64(c.m*c.n*c.k)*float64(b.N)/b.Elapsed().Seconds(), "GFLOP/s")
					})
				}
			}
		}
	}
}

// benchCase is x·Wᵀ on numbers that repeat, which are quick to make.
func benchCase(t kernels.DType, s [3]int) productCase {
	c := productCase{kind: nt, m: s[0], n: s[1], k: s[2]}
	c.a, c.b = repeating(kernels.F32, c.m, c.k), repeating(t, c.n, c.k)
	return c
}

func repeating(t kernels.DType, rows, cols int) kernels.Mat {
	m := kernels.MatOf(kernels.NewHost(t, rows*cols), rows, cols)
	b := m.Buf.Bytes()
	start := min(len(b), 1009*t.Size())
	for i := range start / t.Size() {
		put(kernels.Mat{Buf: m.Buf, Rows: 1, Cols: m.Buf.Len}, 0, i, float32(1+i%7)/8-0.5)
	}
	for n := start; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}

	return m
}

// BenchmarkGEMV measures products of few rows with weights larger than the caches, turn by turn with plain
// reading of as many bytes; the shortest times count.
func BenchmarkGEMV(b *testing.B) {
	const n, k = 16384, 4096
	for _, t := range weightTypes {
		w := repeating(t, n, k)
		for _, threads := range benchThreads {
			for _, p := range precisions {
				for _, m := range []int{1, 2, 4, 8, 16, 32} {
					b.Run(fmt.Sprintf("%s/%s/rows=%d/threads=%d", t, p, m, threads), func(b *testing.B) {
						benchmarkSkinny(b, deviceWith(detect(""), threads), m, w, p)
					})
				}
			}
		}
	}
}

func benchmarkSkinny(b *testing.B, d *Device, m int, w kernels.Mat, p kernels.Precision) {
	x := randomMat(rand.New(rand.NewPCG(1, 1)), kernels.F32, m, w.Cols, 0)
	dst := newMat(kernels.F32, m, w.Rows, 0)
	product, reading := time.Duration(1<<62), time.Duration(1<<62)
	for b.Loop() {
		start := time.Now()
		d.ops.MatMulNT(dst, x, w, kernels.MatMul{Precision: p})
		product = min(product, time.Since(start))
		start = time.Now()
		d.readShares(w.Buf.Bytes(), d.threads)
		reading = min(reading, time.Since(start))
	}

	size := float64(len(w.Buf.Bytes())) / 1e9
	b.ReportMetric(size/product.Seconds(), "GB/s")
	b.ReportMetric(size/reading.Seconds(), "read-GB/s")
	b.ReportMetric(reading.Seconds()/product.Seconds(), "of-reading")
	b.ReportMetric(2e-9*float64(m*w.Len())/product.Seconds(), "GFLOP/s")
}

// BenchmarkOrientations measures x·Wᵀ, dy·W and dyᵀ·x on one thread, at a square shape and at those of SmolLM2-135M's
// MLP for 1024 tokens; the best calls count. Names are rows×columns×inner.
func BenchmarkOrientations(b *testing.B) {
	shapes := map[orientation][][3]int{
		nt: {{512, 2048, 2048}, {1024, 1536, 576}, {1024, 576, 1536}, {1024, 8192, 576}},
		nn: {{512, 2048, 2048}, {1024, 576, 1536}, {1024, 1536, 576}},
		tn: {{2048, 2048, 512}, {1536, 576, 1024}, {576, 1536, 1024}},
	}
	for _, kind := range []orientation{nt, nn, tn} {
		for _, t := range []kernels.DType{kernels.F32, kernels.BF16} {
			for _, s := range shapes[kind] {
				if kind == tn && t != kernels.F32 {
					continue
				}
				b.Run(fmt.Sprintf("%s/%s/%dx%dx%d", kind, t, s[0], s[1], s[2]), func(b *testing.B) {
					benchmarkOrientation(b, kind, t, s)
				})
			}
		}
	}
}

// benchmarkOrientation reports the best call, and of other types than F32 the median of the ratios of two calls, with
// a right operand of F32 and with this one, in turn.
func benchmarkOrientation(b *testing.B, kind orientation, t kernels.DType, s [3]int) {
	d := deviceWith(detect(isa.Disabled()), 1)
	c := newCase(rand.New(rand.NewPCG(1, 1)), kind, t, s[0], s[1], s[2], 0)
	wide := newCase(rand.New(rand.NewPCG(1, 1)), kind, kernels.F32, s[0], s[1], s[2], 0)
	dst := newMat(kernels.F32, c.m, c.n, 0)
	seconds := func(c productCase) float64 {
		start := time.Now()
		c.run(d, dst)
		return time.Since(start).Seconds()
	}

	seconds(c)
	best, ratios := math.Inf(1), []float64(nil)
	for b.Loop() {
		took := seconds(c)
		best = min(best, took)
		if t != kernels.F32 {
			ratios = append(ratios, seconds(wide)/took)
		}
	}

	b.ReportMetric(2e-9*float64(c.m*c.n*c.k)/best, "GFLOP/s")
	if len(ratios) > 0 {
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], "times-F32")
	}
}

// BenchmarkFewRows measures x·Wᵀ of a few rows on one thread, at a square shape, those of SmolLM2-135M's matrices, and
// its vocabulary: with one weight, and with as many as must come from memory, one after the other, as a model's do.
// Where there are both, products by blocks and, turn by turn, those of the dot kernels alone, or, of more rows than go
// by blocks, products that fetch the weight's next rows and those that do not: the best calls, and the median of the
// ratios of two calls.
func BenchmarkFewRows(b *testing.B) {
	const beyond = 96 << 20 // bytes that no cache holds
	shapes := [][2]int{{2048, 2048}, {192, 576}, {576, 576}, {1536, 576}, {576, 1536}, {49152, 576}}
	for _, t := range []kernels.DType{kernels.F32, kernels.BF16} {
		for _, from := range []string{"cache", "memory"} {
			for _, s := range shapes {
				n := 1
				if from == "memory" {
					n = pieces(beyond, s[0]*s[1]*t.Size())
				}
				var list []kernels.Mat
				for _, m := range []int{1, 2, 3, 4, 7, 8, 12, 16, 17, 20, 24, 32, 48, 64, 128} {
					b.Run(fmt.Sprintf("%s/%s/%dx%dx%d", t, from, m, s[0], s[1]), func(b *testing.B) {
						for len(list) < n {
							list = append(list, repeating(t, s[0], s[1]))
						}
						benchmarkFew(b, m, list)
					})
				}
			}
		}
	}
}

// benchmarkFew multiplies m rows by one weight after the other.
func benchmarkFew(b *testing.B, m int, weights []kernels.Mat) {
	x, dst := repeating(kernels.F32, m, weights[0].Cols), newMat(kernels.F32, m, weights[0].Rows, 0)
	d := deviceWith(detect(isa.Disabled()), 1)
	blocks, dots := d.matmuls(), d.matmuls()
	dots.ks.few = nil
	dots.ks.exact.fetching = nil
	calls := 0
	call := func(p *matmuls) time.Duration {
		w := weights[calls%len(weights)]
		calls++
		start := time.Now()
		p.nt(dst, x, w, kernels.MatMul{})
		return time.Since(start)
	}

	best, bestDots := time.Duration(1<<62), time.Duration(1<<62)
	var ratios []float64
	for b.Loop() {
		t := call(blocks)
		best = min(best, t)
		if blocks.ks.few != nil {
			other := call(dots)
			bestDots = min(bestDots, other)
			ratios = append(ratios, other.Seconds()/t.Seconds())
		}
	}

	work := 2e-9 * float64(m*weights[0].Len())
	b.ReportMetric(work/best.Seconds(), "GFLOP/s")
	if len(ratios) > 0 {
		slices.Sort(ratios)
		other := "dots-GFLOP/s"
		if m > skinnyRows {
			other = "unfetched-GFLOP/s"
		}
		b.ReportMetric(work/bestDots.Seconds(), other)
		b.ReportMetric(ratios[len(ratios)/2], "times")
	}
}
