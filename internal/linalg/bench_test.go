package linalg

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/modelcompress/compress/internal/cputime"
	"gonum.org/v1/gonum/mat"
)

// cpuSeconds is the processor time that this process has used: what a busy machine still measures.
func cpuSeconds() float64 {
	return cputime.Process().Seconds()
}

// compare runs f, gonum's counterpart and the innermost kernel in turns, takes the least of each, and reports
// processor time, the rate for the given number of operations, its share of the kernel's, and how many times
// faster than gonum f is.
func compare(b *testing.B, flops float64, f, gonum func()) {
	x := make([]float64, 1<<13)
	y := make([]float64, 1<<13)
	c := make([]float64, 1<<13)
	t := tileArgs{
		a: unsafe.Pointer(&x[0]), b: unsafe.Pointer(&y[0]), c: unsafe.Pointer(&c[0]), k: blockDepth,
		ldc: kernel.cols * 8,
	}
	const tiles = 3000
	best := [3]float64{1e9, 1e9, 1e9}
	least := func(i int, f func()) {
		start := cpuSeconds()
		f()
		best[i] = min(best[i], cpuSeconds()-start)
	}

	for b.Loop() {
		least(0, f)
		least(2, func() {
			for range tiles {
				kernel.tile(&t)
			}
		})

		if gonum != nil {
			least(1, gonum)
		}
	}

	peak := float64(2*kernel.rows*kernel.cols*blockDepth*tiles) / best[2]
	b.ReportMetric(best[0], "cpu-s")

	if flops > 0 {
		b.ReportMetric(flops/best[0]/1e9, "GF/cpu-s")
		b.ReportMetric(flops/best[0]/peak, "of-peak")
	}

	if gonum != nil {
		b.ReportMetric(best[1]/best[0], "x-gonum")
	}
}

// sizesOf runs a benchmark for each size; beyond the limit gonum takes too long and is left out.
func sizesOf(b *testing.B, limit int, ns []int, f func(b *testing.B, n int, gonum bool)) {
	for _, n := range ns {
		b.Run(fmt.Sprint(n), func(b *testing.B) { f(b, n, n <= limit) })
	}
}

// either returns f if wanted.
func either(wanted bool, f func()) func() {
	if wanted {
		return f
	}
	return nil
}

func BenchmarkMul(b *testing.B) {
	sizesOf(b, 1024, []int{64, 256, 1024, 2048}, func(b *testing.B, n int, gonum bool) {
		x := random(1, n, n)
		y := random(2, n, n)
		z := newSpaced(n, n)
		p := dense(x)
		q := dense(y)
		r := mat.NewDense(n, n, nil)
		cube := float64(n) * float64(n) * float64(n)
		compare(b, 2*cube, func() { Solver{}.Mul(z, x, y, Product{}) }, either(gonum, func() { r.Mul(p, q) }))
	})
}

// definite is symmetric, well conditioned and quick to make.
func definite(n int) Matrix {
	h := random(3, n, n)
	h.Symmetrize()
	for i := range n {
		h.Set(i, i, 3*float64(n))
	}
	return h
}

func BenchmarkCholesky(b *testing.B) {
	sizesOf(b, 1024, []int{256, 1024, 2048}, func(b *testing.B, n int, gonum bool) {
		h, w := definite(n), newSpaced(n, n)
		sym := mat.NewSymDense(n, h.Data)
		cube := float64(n) * float64(n) * float64(n)
		compare(b, cube/3, func() { w.Copy(h); check(b, Solver{}.Cholesky(w, false)) }, either(gonum, func() {
			var c mat.Cholesky
			c.Factorize(sym)
		}))
	})
}

// BenchmarkInverseFactor is U with H⁻¹ = UᵀU; gonum goes by Cholesky, inverse, Cholesky.
func BenchmarkInverseFactor(b *testing.B) {
	sizesOf(b, 1024, []int{256, 1024, 2048, 4096}, func(b *testing.B, n int, gonum bool) {
		h, w := definite(n), newSpaced(n, n)
		sym := mat.NewSymDense(n, h.Data)
		cube := float64(n) * float64(n) * float64(n)
		compare(b, 2*cube/3, func() { w.Copy(h); check(b, Solver{}.InverseFactor(w)) }, either(gonum, func() {
			var c mat.Cholesky
			var inverse mat.SymDense
			c.Factorize(sym)
			check(b, c.InverseTo(&inverse))
			c.Factorize(&inverse)
		}))
	})
}

func BenchmarkQR(b *testing.B) {
	sizesOf(b, 512, []int{256, 512, 2048}, func(b *testing.B, n int, gonum bool) {
		a := random(1, n, n)
		d := dense(a)
		cube := float64(n) * float64(n) * float64(n)
		compare(b, 8*cube/3, func() {
			_, _, err := Solver{}.QR(a)
			check(b, err)
		}, either(gonum, func() {
			var qr mat.QR
			var q mat.Dense
			qr.Factorize(d)
			qr.QTo(&q)
		}))
	})
}

func BenchmarkSymEigen(b *testing.B) {
	sizesOf(b, 512, []int{256, 512, 2048}, func(b *testing.B, n int, gonum bool) {
		h := definite(n)
		sym := mat.NewSymDense(n, h.Data)
		compare(b, 0, func() {
			_, _, err := Solver{}.SymEigen(h)
			check(b, err)
		}, either(gonum, func() {
			var e mat.EigenSym
			e.Factorize(sym, true)
		}))
	})
}

func BenchmarkSVD(b *testing.B) {
	sizesOf(b, 256, []int{64, 256, 1024}, func(b *testing.B, n int, gonum bool) {
		a := random(1, n, n)
		d := dense(a)
		compare(b, 0, func() {
			_, _, _, err := Solver{}.SVD(a)
			check(b, err)
		}, either(gonum, func() {
			var s mat.SVD
			s.Factorize(d, mat.SVDThin)
		}))
	})
}

func BenchmarkSingularValues(b *testing.B) {
	sizesOf(b, 256, []int{256, 1024, 2048}, func(b *testing.B, n int, gonum bool) {
		a := random(1, n, n)
		d := dense(a)
		compare(b, 0, func() {
			_, err := Solver{}.SingularValues(a)
			check(b, err)
		}, either(gonum, func() {
			var s mat.SVD
			s.Factorize(d, mat.SVDNone)
		}))
	})
}

// BenchmarkTruncatedSVD is the leading 64 values and vectors.
func BenchmarkTruncatedSVD(b *testing.B) {
	sizesOf(b, 0, []int{1024, 2048}, func(b *testing.B, n int, _ bool) {
		a := random(1, n, n)
		compare(b, 0, func() {
			_, _, _, err := Solver{}.TruncatedSVD(a, 64, Sketch{})
			check(b, err)
		}, nil)
	})
}

func BenchmarkMaxAssignment(b *testing.B) {
	sizesOf(b, 0, []int{256, 1024, 2752}, func(b *testing.B, n int, _ bool) {
		a := random(1, n, n)
		compare(b, 0, func() {
			_, _, err := MaxAssignment(a)
			check(b, err)
		}, nil)
	})
}
