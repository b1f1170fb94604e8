package linalg

import (
	"fmt"
	"testing"
	"time"
)

func TestQRx(t *testing.T) {
	for _, sh := range [][2]int{{1, 1}, {5, 3}, {3, 5}, {47, 47}, {48, 48}, {49, 49}, {130, 97}, {97, 130}, {300, 200}} {
		a := random(1, sh[0], sh[1])
		q, r, err := Solver{}.QR(a)
		if err != nil {
			t.Fatal(err)
		}
		k := q.Cols
		p, i := New(sh[0], sh[1]), New(k, k)
		Solver{}.Mul(p, q, r, Product{})
		Solver{}.Mul(i, q, q, Product{TransA: true})
		t.Log(sh, diff(p, a), diff(i, Identity(k)))
		if diff(p, a) > 1e-12 || diff(i, Identity(k)) > 1e-13 {
			t.Error("bad")
		}
	}
}

func TestEigx(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 31, 32, 33, 49, 50, 51, 64, 65, 97, 130, 300} {
		for kind := range 5 {
			a := random(1, n, n)
			switch kind {
			case 1:
				a = positive(2, n)
			case 2:
				a = Identity(n)
			case 3: // rank one
				x := random(3, n, 1)
				Solver{}.Mul(a, x, x, Product{TransB: true})
			case 4:
				a.Zero()
				for i := range n {
					a.Set(i, i, 2)
					if i > 0 {
						a.Set(i, i-1, 1e-9)
					}
				}
			}
			a.symmetrize()
			start := time.Now()
			d, v, err := Solver{}.SymEigen(a)
			if err != nil {
				t.Fatal(n, kind, err)
			}
			el := time.Since(start)
			i, p, vd := New(n, n), New(n, n), v.Clone()
			for r := range n {
				for c := range n {
					vd.Data[r*vd.Stride+c] *= d[c]
				}
			}
			Solver{}.Mul(p, vd, v, Product{TransB: true})
			Solver{}.Mul(i, v, v, Product{TransA: true})
			e1, e2 := diff(p, a)/max(a.MaxAbs(), 1e-300), diff(i, Identity(n))
			w, err := Solver{}.SymEigenvalues(a)
			if err != nil {
				t.Fatal(n, kind, err)
			}
			e3 := diff(Of(w, 1, n), Of(d, 1, n)) / max(a.MaxAbs(), 1e-300)
			if e1 > 1e-13*float64(n+10) || e2 > 1e-14*float64(n+10) || e3 > 1e-14*float64(n+10) {
				t.Error(n, kind, e1, e2, e3, el)
			}
		}
	}
}

func BenchmarkEigx(b *testing.B) {
	for _, n := range []int{256, 1024, 2048} {
		a := random(1, n, n)
		a.symmetrize()
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Solver{}.SymEigen(a)
			}
		})
		b.Run(fmt.Sprint("values", n), func(b *testing.B) {
			for b.Loop() {
				Solver{}.SymEigenvalues(a)
			}
		})
		b.Run(fmt.Sprint("qr", n), func(b *testing.B) {
			for b.Loop() {
				Solver{}.QR(a)
			}
		})
	}
}
