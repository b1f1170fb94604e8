package linalg

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"
	"pgregory.net/rapid"
)

var rectangles = [][2]int{
	{0, 0},
	{0, 3},
	{1, 1},
	{1, 9},
	{5, 3},
	{3, 5},
	{32, 32},
	{33, 33},
	{47, 47},
	{48, 48},
	{49, 49},
	{130, 97},
	{97, 130},
	{130, 130},
	{200, 64},
}

// kinds of matrices that are hard in different ways.
var kinds = map[string]func(t testing.TB, m, n int) Matrix{
	"random": func(_ testing.TB, m, n int) Matrix { return random(1, m, n) },
	"zero":   func(_ testing.TB, m, n int) Matrix { return New(m, n) },
	"rank 1": func(_ testing.TB, m, n int) Matrix { return mul(random(2, m, 1), random(3, 1, n), Product{}) },
	"rank half": func(_ testing.TB, m, n int) Matrix {
		k := (min(m, n) + 1) / 2
		return mul(random(2, m, k), random(3, k, n), Product{})
	},
	"ill-conditioned": func(t testing.TB, m, n int) Matrix { return conditioned(t, 4, m, n, 1e18) },
	"tiny identity": func(_ testing.TB, m, n int) Matrix {
		a := New(m, n)
		for i := range min(m, n) {
			a.Set(i, i, 1e-200)
		}
		return a
	},
	"huge": func(_ testing.TB, m, n int) Matrix { a := random(5, m, n); a.Scale(1e180); return a },
	"graded": func(_ testing.TB, m, n int) Matrix {
		a := random(6, m, n)
		for i := range m {
			for j := range n {
				a.Data[i*n+j] *= math.Pow(10, -float64(j)/3)
			}
		}
		return a
	},
	"clustered": func(_ testing.TB, m, n int) Matrix { // two values, many times
		a := New(m, n)
		for i := range min(m, n) {
			a.Set(i, i, float64(1+i%2))
			if i > 0 {
				a.Set(i, i-1, 1e-12)
			}
		}
		return a
	},
}

func TestQR(t *testing.T) {
	for name, make := range kinds {
		for _, s := range rectangles {
			a := make(t, s[0], s[1])
			q, r, err := Solver{}.QR(gapped(a))
			check(t, err)
			within(t, name+": Q·R", mul(q, r, Product{}), a, 5)
			orthonormal(t, name, q)

			for i := range r.Rows {
				if r.At(i, i) < 0 || slices.ContainsFunc(r.Row(i)[:i], func(v float64) bool { return v != 0 }) {
					t.Fatalf("%s, %v: row %d of R is %v", name, s, i, r.Row(i))
				}
			}
		}
	}
}

// scaleColumns multiplies column j by f[j].
func scaleColumns(a Matrix, f []float64) Matrix {
	b := a.Clone()
	for i := range b.Rows {
		for j := range f {
			b.Data[i*b.Stride+j] *= f[j]
		}
	}
	return b
}

func TestSymEigen(t *testing.T) {
	for name, make := range kinds {
		for _, n := range sizes {
			a := make(t, n, n)
			a.Symmetrize()

			read := gapped(a)
			for i := range n { // the upper triangle is not read
				for j := range i {
					read.Set(j, i, math.NaN())
				}
			}

			d, v, err := Solver{}.SymEigen(read)
			check(t, err)
			within(t, name+": V·D·Vᵀ", mul(scaleColumns(v, d), v, Product{TransB: true}), a, 10)
			orthonormal(t, name, v)

			only, err := Solver{}.SymEigenvalues(read)
			check(t, err)
			if !slices.IsSorted(d) || !slices.IsSorted(only) {
				t.Errorf("%s, %d: eigenvalues are not in order", name, n)
			}
			if n == 0 || a.MaxAbs() > 1e100 || a.MaxAbs() < 1e-100 && a.MaxAbs() > 0 { // gonum loses these
				continue
			}

			var want mat.EigenSym
			if !want.Factorize(mat.NewSymDense(n, a.Clone().Data), false) {
				t.Fatal("gonum fails")
			}

			within(t, name+": eigenvalues against gonum", Of(d, 1, n), Of(want.Values(nil), 1, n), 10)
			within(t, name+": eigenvalues alone", Of(only, 1, n), Of(d, 1, n), 10)
		}
	}
}

func TestSVD(t *testing.T) {
	for name, make := range kinds {
		for _, s := range rectangles {
			a := make(t, s[0], s[1])
			u, d, v, err := Solver{}.SVD(gapped(a))
			check(t, err)
			within(t, name+": U·D·Vᵀ", mul(scaleColumns(u, d), v, Product{TransB: true}), a, 20)
			orthonormal(t, name+", U", u)
			orthonormal(t, name+", V", v)
			k := len(d)

			for i, x := range d {
				if x < 0 || i > 0 && x > d[i-1] {
					t.Fatalf("%s, %v: singular values are not in order", name, s)
				}
			}

			only, err := Solver{}.SingularValues(a)
			check(t, err)

			for i := range only {
				if math.Abs(only[i]-d[i]) > 1e-11*d[0] {
					t.Errorf("%s, %v: singular value %d alone is %g, with vectors %g", name, s, i, only[i], d[i])
				}
			}

			if k == 0 || a.MaxAbs() > 1e100 || a.MaxAbs() < 1e-100 {
				continue
			}

			var want mat.SVD
			if !want.Factorize(dense(a), mat.SVDNone) {
				t.Fatal("gonum fails")
			}

			within(t, name+": singular values against gonum", Of(d, 1, k), Of(want.Values(nil), 1, k), 10)
		}
	}
}

// TestTruncatedSVD: within 5 % of the best error for a flat spectrum, and the best itself for a steep one.
func TestTruncatedSVD(t *testing.T) {
	for _, s := range [][2]int{{300, 180}, {180, 300}, {60, 40}} {
		for name, c := range map[string]struct {
			a     Matrix
			slack float64
		}{"flat": {random(1, s[0], s[1]), 1.05}, "steep": {conditioned(t, 2, s[0], s[1], 1e16), 1 + 1e-6}} {
			for _, rank := range []int{1, 7, 25} {
				u, d, v, err := Solver{}.TruncatedSVD(c.a, rank, Sketch{Seed: 3})
				check(t, err)
				if len(d) != rank || u.Cols != rank || v.Cols != rank {
					t.Fatalf("%d values for rank %d", len(d), rank)
				}

				orthonormal(t, name, u)
				orthonormal(t, name, v)
				rest := c.a.Clone()
				Solver{}.Mul(rest, scaleColumns(u, d), v, Product{TransB: true, Minus: true, Accumulate: true})

				_, all, _, err := Solver{}.SVD(c.a)
				check(t, err)
				norm, err := Solver{}.SpectralNorm(rest, 1e-4)
				check(t, err)
				if norm > all[rank]*c.slack*(1+1e-3)+1e-12 {
					t.Errorf("%s %v, rank %d: error %g, best %g", name, s, rank, norm, all[rank])
				}
			}
		}
	}

	for _, rank := range []int{-1, 0, 4} {
		if _, _, _, err := (Solver{}).TruncatedSVD(New(3, 5), rank, Sketch{}); !errors.Is(err, ErrRank) {
			t.Errorf("rank %d: error %v", rank, err)
		}
	}
}

func TestSpectralNorm(t *testing.T) {
	for name, make := range kinds {
		for _, s := range rectangles {
			a := make(t, s[0], s[1])
			got, err := Solver{}.SpectralNorm(a, 0)
			check(t, err)
			want, err := Solver{}.SingularValues(a)
			check(t, err)
			if len(want) > 0 && math.Abs(got-want[0]) > 1e-7*want[0] { // steps shrink slowly where values are close
				t.Errorf("%s %v: %g, want %g", name, s, got, want[0])
			}
		}
	}
}

func TestEffectiveRank(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{0, 0}, 0}, {[]float64{5, 0}, 1}, {[]float64{2, 2, 2}, 3}} {
		if got := EffectiveRank(c.values); math.Abs(got-c.want) > 1e-14 {
			t.Errorf("%v: %g, want %g", c.values, got, c.want)
		}
	}
}

func TestLeastSquares(t *testing.T) {
	for _, s := range [][2]int{{1, 1}, {50, 50}, {130, 40}, {300, 97}} {
		a, b := random(1, s[0], s[1]), random(2, s[0], 3)
		x, err := Solver{}.LeastSquares(a, b)
		check(t, err)

		var want mat.Dense
		check(t, want.Solve(dense(a), dense(b)))
		within(t, "least squares", x, fromDense(&want), 1000) // a square random matrix has a condition of some hundreds

		const lambda = 0.3
		x, err = Solver{}.Ridge(a, b, lambda)
		check(t, err)
		g := mul(a, a, Product{TransA: true})
		for i := range s[1] {
			g.Set(i, i, g.At(i, i)+lambda)
		}

		within(t, "normal equations", mul(g, x, Product{}), mul(a, b, Product{TransA: true}), 100)
	}

	twice := random(3, 60, 10)
	for i := range 60 {
		twice.Set(i, 7, 2*twice.At(i, 2)-twice.At(i, 5))
	}
	if _, err := (Solver{}).LeastSquares(twice, New(60, 1)); !errors.Is(err, ErrSingular) {
		t.Errorf("dependent columns: error %v", err)
	}
}

// TestNonFinite: NaN and infinities are named errors everywhere, with their place.
func TestNonFinite(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		a := random(1, 40, 40)
		a.Set(30, 20, v)
		_, _, qr := Solver{}.QR(a)
		_, _, eig := Solver{}.SymEigen(a)

		_, values := Solver{}.SymEigenvalues(a)
		_, _, _, svd := Solver{}.SVD(a)
		_, singular := Solver{}.SingularValues(a)
		_, _, _, sketch := Solver{}.TruncatedSVD(a, 1, Sketch{})
		_, norm := Solver{}.SpectralNorm(a, 0)

		_, ls := Solver{}.LeastSquares(a, New(40, 1))
		_, right := Solver{}.LeastSquares(Identity(40), a)
		_, _, assign := MaxAssignment(a)
		for i, err := range []error{qr, eig, values, svd, singular, sketch, norm, ls, right, assign} {
			if !errors.Is(err, ErrNonFinite) {
				t.Errorf("case %d, %g: error %v", i, v, err)
			}
		}
	}
}

func TestMaxAssignment(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(r, "n")
		a := New(n, n)
		for i := range a.Data {
			a.Data[i] = float64(rapid.IntRange(-4, 4).Draw(r, "value"))
		}

		columns, sum, err := MaxAssignment(a)
		if err != nil {
			r.Fatal(err)
		}

		if got := sumAt(a, columns); got != sum || best(a, 0, make([]bool, n)) != sum {
			r.Fatalf("sum %g (columns give %g), best %g", sum, got, best(a, 0, make([]bool, n)))
		}
	})

	for _, n := range []int{0, 100, 300} { // against the dual: no assignment is worth more than the prices
		a := random(uint64(n), n, n)
		columns, sum, err := MaxAssignment(a)
		check(t, err)
		seen := map[int]bool{}
		for _, j := range columns {
			seen[j] = true
		}
		if len(seen) != n || math.Abs(sumAt(a, columns)-sum) > 1e-9 {
			t.Errorf("%d rows get %d columns", n, len(seen))
		}

		for i := range n { // no exchange of two gains
			for j := range n {
				gain := a.At(i, columns[j]) + a.At(j, columns[i]) - a.At(i, columns[i]) - a.At(j, columns[j])
				if gain > 1e-12 {
					t.Fatalf("exchanging rows %d and %d gains %g", i, j, gain)
				}
			}
		}
	}
}

func sumAt(a Matrix, columns []int) (sum float64) {
	for i, j := range columns {
		sum += a.At(i, j)
	}
	return sum
}

// best tries everything.
func best(a Matrix, i int, used []bool) float64 {
	if i == a.Rows {
		return 0
	}

	top := math.Inf(-1)
	for j := range used {
		if !used[j] {
			used[j] = true
			top = max(top, a.At(i, j)+best(a, i+1, used))
			used[j] = false
		}
	}

	return top
}

func TestSpectralProperty(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m, n := rapid.IntRange(1, 90).Draw(r, "m"), rapid.IntRange(1, 90).Draw(r, "n")
		rank := rapid.IntRange(0, min(m, n)).Draw(r, "rank")
		a := mul(random(rapid.Uint64().Draw(r, "seed"), m, rank), random(7, rank, n), Product{})
		u, d, v, err := Solver{}.SVD(a)
		if err != nil {
			r.Fatal(err)
		}

		if e := diff(mul(scaleColumns(u, d), v, Product{TransB: true}), a); e > 1e-13 {
			r.Fatalf("reconstruction off by %g", e)
		}

		if e := max(diff(mul(u, u, Product{TransA: true}), Identity(len(d))),
			diff(mul(v, v, Product{TransA: true}), Identity(len(d)))); e > 1e-13 {
			r.Fatalf("orthogonality off by %g", e)
		}

		for i := rank; i < len(d); i++ {
			if d[i] > 1e-13*d[0] {
				r.Fatalf("singular value %d of a matrix of rank %d is %g", i, rank, d[i])
			}
		}
	})
}

// ExampleEffectiveRank: two equal singular values.
func ExampleEffectiveRank() {
	d, err := Solver{}.SingularValues(Of([]float64{3, 0, 0, 3, 0, 0}, 3, 2))
	if err != nil {
		panic(err)
	}
	fmt.Printf("%.1f %.1f\n", d, EffectiveRank(d))
	// Output: [3.0 3.0] 2.0
}
