package linalg

import (
	"fmt"
	"math"
	"testing"
)

func diff(a, b Matrix) float64 {
	top := 0.0
	for i := range a.Rows {
		for j := range a.Cols {
			top = max(top, math.Abs(a.At(i, j)-b.At(i, j)))
		}
	}
	return top
}

func TestChol(t *testing.T) {
	for _, n := range []int{1, 2, 31, 32, 33, 63, 64, 65, 95, 96, 97, 130, 300} {
		h := positive(3, n)
		for _, upper := range []bool{false, true} {
			l := h.Clone()
			if err := (Solver{}).Cholesky(l, upper); err != nil {
				t.Fatal(err)
			}
			p := New(n, n)
			Solver{}.Mul(p, l, l, Product{TransA: upper, TransB: !upper})
			if d := diff(p, h) / h.MaxAbs(); d > 1e-14 {
				t.Errorf("n=%d upper=%v %g", n, upper, d)
			}
			inv := l.Clone()
			if err := (Solver{}).CholeskyInverse(inv, upper); err != nil {
				t.Fatal(err)
			}
			Solver{}.Mul(p, inv, h, Product{})
			if d := diff(p, Identity(n)); d > 1e-10 {
				t.Errorf("inv n=%d upper=%v %g", n, upper, d)
			}
			u := h.Clone()
			if err := (Solver{}).InverseFactor(u); err != nil {
				t.Fatal(err)
			}
			Solver{}.Mul(p, u, u, Product{TransA: true})
			if d := diff(p, inv) / inv.MaxAbs(); d > 1e-11 {
				t.Errorf("U n=%d upper=%v %g", n, upper, d)
			}
		}
	}
}

func TestTri(t *testing.T) {
	for _, n := range []int{1, 5, 32, 33, 64, 100, 130} {
		for mask := range 8 {
			for _, m := range []int{1, 7, 150} {
				o := Triangle{Upper: mask&1 != 0, Trans: mask&2 != 0, Right: mask&4 != 0}
				tr := random(1, n, n)
				for i := range n {
					tr.Set(i, i, 2*float64(n))
				}
				b := random(2, n, m)
				if o.Right {
					b = b.T()
				}
				x := b.Clone()
				if err := (Solver{}).TriSolve(tr, x, o); err != nil {
					t.Fatal(err)
				}
				full := New(n, n)
				copyTriangle(full, tr, o.Upper)
				r := New(b.Rows, b.Cols)
				if o.Right {
					Solver{}.Mul(r, x, full, Product{TransB: o.Trans})
				} else {
					Solver{}.Mul(r, full, x, Product{TransA: o.Trans})
				}
				if d := diff(r, b); d > 1e-13 {
					t.Errorf("n=%d m=%d %+v: %g", n, m, o, d)
				}
				Solver{}.triMul(tr, x, o)
				if d := diff(x, b); d > 1e-13 {
					t.Errorf("mul n=%d m=%d %+v: %g", n, m, o, d)
				}
			}
		}
	}
}

func BenchmarkInverseFactor(b *testing.B) {
	for _, n := range []int{512, 1024, 2048, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := random(3, n, n)
			for i := range n {
				h.Set(i, i, 3*float64(n))
			}
			w := newSpaced(n, n)
			cpu := cpuSeconds()
			for b.Loop() {
				w.Copy(h)
				if err := (Solver{Threads: 1}).InverseFactor(w); err != nil {
					b.Fatal(err)
				}
			}
			cpu = cpuSeconds() - cpu
			b.ReportMetric(cpu/float64(b.N), "cpu-s/op")
			b.ReportMetric(2./3*float64(n)*float64(n)*float64(n)*float64(b.N)/cpu/1e9, "GF/cpu-s")
		})
	}
}
