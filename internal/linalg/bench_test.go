package linalg

import (
	"fmt"
	"syscall"
	"testing"
	"unsafe"
)

// BenchmarkMul is the rate of products of square matrices; the larger ones are the peak that factorisations are held to.
func BenchmarkMul(b *testing.B) {
	for _, n := range []int{64, 128, 256, 512, 1024, 2048} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, y, z := random(1, n, n), random(2, n, n), New(n, n)
			cpu := cpuSeconds()
			for b.Loop() {
				Solver{Threads: 1}.Mul(z, x, y, Product{})
			}
			b.ReportMetric(2*float64(n)*float64(n)*float64(n)*float64(b.N)/(cpuSeconds()-cpu)/1e9, "GF/cpu-s")
		})
	}
}

// cpuSeconds is the processor time that this process has used.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkTile is the rate of the innermost kernel on operands in the first-level cache.
func BenchmarkTile(b *testing.B) {
	x, y, c := make([]float64, 1<<13), make([]float64, 1<<13), make([]float64, 1<<13)
	t := tileArgs{a: unsafe.Pointer(&x[0]), b: unsafe.Pointer(&y[0]), c: unsafe.Pointer(&c[0]), k: blockDepth, ldc: kernel.cols * 8}
	cpu := cpuSeconds()
	n := 0
	for b.Loop() {
		for range 100 {
			kernel.tile(&t)
		}
		n += 100
	}
	b.ReportMetric(float64(2*kernel.rows*kernel.cols*blockDepth*n)/(cpuSeconds()-cpu)/1e9, "GF/cpu-s")
}
