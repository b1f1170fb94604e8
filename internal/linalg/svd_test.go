package linalg

import (
	"fmt"
	"testing"
)

func TestSVDx(t *testing.T) {
	for _, sh := range [][2]int{{1, 1}, {5, 3}, {3, 5}, {32, 32}, {33, 33}, {49, 49}, {60, 40}, {130, 97}, {97, 130}, {200, 200}} {
		for kind := range 5 {
			m, n := sh[0], sh[1]
			a := random(1, m, n)
			switch kind {
			case 1: // rank 1
				x, y := random(2, m, 1), random(3, 1, n)
				Solver{}.Mul(a, x, y, Product{})
			case 2:
				a.Zero()
			case 3: // graded
				for i := range m {
					for j := range n {
						a.Data[i*n+j] *= pow10(-j / 2)
					}
				}
			case 4: // repeated
				a.Zero()
				for i := range min(m, n) {
					a.Set(i, i, 1e-200)
				}
			}
			u, d, v, err := Solver{}.SVD(a)
			if err != nil {
				t.Fatal(sh, kind, err)
			}
			k := len(d)
			us := u.Clone()
			for r := range m {
				for c := range k {
					us.Data[r*us.Stride+c] *= d[c]
				}
			}
			p, iu, iv := New(m, n), New(k, k), New(k, k)
			Solver{}.Mul(p, us, v, Product{TransB: true})
			Solver{}.Mul(iu, u, u, Product{TransA: true})
			Solver{}.Mul(iv, v, v, Product{TransA: true})
			e1, e2, e3 := diff(p, a)/max(a.MaxAbs(), 1e-300), diff(iu, Identity(k)), diff(iv, Identity(k))
			if e1 > 1e-13*float64(10+k) || e2 > 1e-14*float64(10+k) || e3 > 1e-14*float64(10+k) {
				t.Error(sh, kind, e1, e2, e3)
			}
			sv, err := Solver{}.SingularValues(a)
			if err != nil {
				t.Fatal(err)
			}
			if e := diff(Of(sv, 1, k), Of(d, 1, k)); k > 0 && e > 1e-11*d[0] {
				t.Error(sh, kind, "values", e)
			}
		}
	}
}

func pow10(e int) float64 {
	f := 1.0
	for range -e {
		f /= 10
	}
	return f
}

func BenchmarkSVDx(b *testing.B) {
	for _, n := range []int{64, 256, 1024} {
		a := random(1, n, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Solver{}.SVD(a)
			}
		})
		b.Run(fmt.Sprint("values", n), func(b *testing.B) {
			for b.Loop() {
				Solver{}.SingularValues(a)
			}
		})
		b.Run(fmt.Sprint("trunc", n), func(b *testing.B) {
			for b.Loop() {
				Solver{}.TruncatedSVD(a, 16, Sketch{})
			}
		})
		b.Run(fmt.Sprint("assign", n), func(b *testing.B) {
			for b.Loop() {
				MaxAssignment(a)
			}
		})
	}
}
