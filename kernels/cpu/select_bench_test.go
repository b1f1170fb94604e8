package cpu

import (
	"fmt"
	"testing"
	"time"

	"github.com/modelcompress/compress/kernels"
)

// BenchmarkSelect measures score and mask of a 4096×4096 matrix on one thread, in nanoseconds per element, and
// as a share of the memory bandwidth measured in the same run: the bytes that have to move (weights once, mask
// once) over the time, divided by what a plain copy reaches (%bw), both read and written bytes counted.
func BenchmarkSelect(b *testing.B) {
	const n = 4096
	d := New(Options{Threads: 1})
	mask := kernels.MatOf(kernels.NewHost(kernels.U8, n*n), n, n)
	col := kernels.MatOf(kernels.NewHost(kernels.F32, n), 1, n)
	for j := range col.Buf.F32() {
		col.Buf.F32()[j] = 1 + float32(j%17)/8
	}

	x := gaussian(n)
	o := d.Ops()
	for _, c := range []struct {
		name string
		run  func(s kernels.Score)
	}{
		{"wanda_row50", func(s kernels.Score) { s.Col = col; o.SelectRows(mask, s, n/2) }},
		{"magnitude_all", func(s kernels.Score) { o.SelectAll(mask, s, n*n/2) }},
		{"nm_2_4", func(s kernels.Score) { o.SelectNM(mask, s, 2, 4) }},
		{"nm_4_8", func(s kernels.Score) { o.SelectNM(mask, s, 4, 8) }},
		{"nm_8_16", func(s kernels.Score) { o.SelectNM(mask, s, 8, 16) }},
	} {
		for _, t := range []struct {
			name string
			x    kernels.Mat
		}{{"f32", x[0]}, {"bf16", x[1]}} {
			b.Run(fmt.Sprintf("%s/%s", c.name, t.name), func(b *testing.B) {
				measure(b, n*n, n*n*(t.x.DType().Size()+1), func() { c.run(kernels.Score{X: t.x}) })
			})
		}
	}
}

// BenchmarkStream measures the operations that only stream, as BenchmarkSelect does.
func BenchmarkStream(b *testing.B) {
	const n = 4096
	o := New(Options{Threads: 1}).Ops()
	mask := kernels.MatOf(kernels.NewHost(kernels.U8, n*n), n, n)
	acc := kernels.MatOf(kernels.NewHost(kernels.F64, n), 1, n)
	for i := range mask.Buf.U8() {
		mask.Buf.U8()[i] = uint8(i & 1)
	}

	for i, x := range gaussian(n) {
		size := n * n * x.DType().Size()
		name := []string{"f32", "bf16"}[i]
		if i == 0 {
			b.Run("ColSumSq", func(b *testing.B) { measure(b, n*n, size, func() { o.ColSumSq(acc, x) }) })
		}

		b.Run("NonFinite/"+name, func(b *testing.B) { measure(b, n*n, size, func() { o.NonFinite(x) }) })
		b.Run("CountZero/"+name, func(b *testing.B) { measure(b, n*n, size, func() { o.CountZero(x) }) })
		b.Run("ApplyMask/"+name, func(b *testing.B) { measure(b, n*n, 2*size+n*n, func() { o.ApplyMask(x, mask) }) })
	}
}

// gaussian makes n×n matrices of roughly normal numbers, F32 and BF16.
func gaussian(n int) [2]kernels.Mat {
	f, h := kernels.NewHost(kernels.F32, n*n), kernels.NewHost(kernels.BF16, n*n)
	seed := uint64(1)
	for i := range f.F32() {
		sum := float32(0)
		seed = seed*6364136223846793005 + 1442695040888963407
		for s := range 4 {
			sum += float32(int16(seed>>(16*s))) / (1 << 15)
		}
		f.F32()[i], h.U16()[i] = sum, kernels.ToBF16(sum)
	}

	return [2]kernels.Mat{kernels.MatOf(f, n, n), kernels.MatOf(h, n, n)}
}

// measure reports ns/elem and, with the copy bandwidth of memory measured between the repetitions, %bw. Both
// are minima.
func measure(b *testing.B, elems, bytes int, f func()) {
	src, dst := make([]byte, 64<<20), make([]byte, 64<<20)
	for i := range src { // pages never written to would all be the one zero page, in the cache
		src[i] = byte(i)
	}

	copy(dst, src)
	best, copied := time.Duration(1<<62), time.Duration(1<<62)
	f()

	for b.Loop() {
		t := time.Now()
		f()
		best = min(best, time.Since(t))

		b.StopTimer()
		t = time.Now()
		copy(dst, src)
		copied = min(copied, time.Since(t))
		b.StartTimer()
	}

	bandwidth := 2 * float64(len(src)) / copied.Seconds()
	b.ReportMetric(float64(best.Nanoseconds())/float64(elems), "ns/elem")
	b.ReportMetric(best.Seconds()*1e3, "ms(min)")
	b.ReportMetric(bandwidth/1e9, "GB/s(copy)")
	b.ReportMetric(100*float64(bytes)/best.Seconds()/bandwidth, "%bw")
}
