package linalg

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"
)

// sizes lie around the widths of tiles, bases and blocks.
var sizes = []int{
	0, 1, 2, 3, 4, 7, 8, 9, 12, 13, 23, 24, 25, 31, 32, 33, 47, 48, 49, 50, 51, 63, 64, 65, 95, 96, 97,
	98, 99, 127, 128, 129, 130, 191, 193, 260,
}

// random is a matrix of normal values.
func random(seed uint64, rows, cols int) Matrix {
	rng := rand.New(rand.NewPCG(seed, 7))
	a := New(rows, cols)
	for i := range a.Data {
		a.Data[i] = rng.NormFloat64()
	}
	return a
}

// gapped is a copy of a within a larger matrix of NaNs, which nobody may read or write.
func gapped(a Matrix) Matrix {
	outer := New(a.Rows+2, a.Cols+5)
	for i := range outer.Data {
		outer.Data[i] = math.NaN()
	}
	in := outer.Sub(1, 1+a.Rows, 2, 2+a.Cols)
	in.Copy(a)
	return in
}

// positive is a symmetric positive definite matrix, well conditioned.
func positive(seed uint64, n int) Matrix {
	x := random(seed, n+n/2+3, n)
	return mul(x, x, Product{TransA: true})
}

// conditioned has singular values from 1 down to 1/condition, evenly spaced in ratio.
func conditioned(t testing.TB, seed uint64, rows, cols int, condition float64) Matrix {
	t.Helper()
	k := min(rows, cols)
	u, v := orthogonal(t, seed, rows, k), orthogonal(t, seed+1, cols, k)
	for j := range k {
		f := math.Pow(condition, -float64(j)/float64(max(1, k-1)))
		for i := range rows {
			u.Data[i*u.Stride+j] *= f
		}
	}

	return mul(u, v, Product{TransB: true})
}

func orthogonal(t testing.TB, seed uint64, rows, cols int) Matrix {
	t.Helper()
	q, _, err := Solver{}.QR(random(seed, rows, cols))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// mul is a product in a new matrix.
func mul(a, b Matrix, o Product) Matrix {
	m, _ := operand{a, o.TransA}.size()
	_, n := operand{b, o.TransB}.size()
	c := New(m, n)
	Solver{}.Mul(c, a, b, o)
	return c
}

// diff is the largest difference of two matrices, relative to the largest element of the second; NaN counts as
// infinite.
func diff(a, b Matrix) float64 {
	top := 0.0
	for i := range a.Rows {
		for j := range a.Cols {
			d := math.Abs(a.At(i, j) - b.At(i, j))
			if math.IsNaN(d) {
				return math.Inf(1)
			}
			top = max(top, d)
		}
	}

	if size := b.MaxAbs(); size > 0 {
		return top / size
	}

	return top
}

// within fails the test if two matrices differ by more than the tolerance, in units of rounding times their
// size: errors of stable algorithms grow slower than that.
func within(t testing.TB, what string, got, want Matrix, units float64) {
	t.Helper()
	n := float64(max(10, want.Rows, want.Cols))
	if d := diff(got, want); d > units*n*epsilon {
		t.Errorf("%s, [%d, %d]: differs by %.3g, %.1f units; at most %g", what, want.Rows, want.Cols, d, d/n/epsilon,
			units)
	}
}

func orthonormal(t testing.TB, what string, q Matrix) {
	t.Helper()
	within(t, what+": columns are not orthonormal", mul(q, q, Product{TransA: true}), Identity(q.Cols), 10)
}

// dense copies to gonum.
func dense(a Matrix) *mat.Dense {
	d := mat.NewDense(a.Rows, a.Cols, nil)
	for i := range a.Rows {
		d.SetRow(i, a.Row(i))
	}
	return d
}

// fromDense copies from gonum.
func fromDense(m mat.Matrix) Matrix {
	r, c := m.Dims()
	a := New(r, c)
	for i := range r {
		for j := range c {
			a.Set(i, j, m.At(i, j))
		}
	}
	return a
}

// TestMul compares all forms with gonum, for operands with gaps between rows.
func TestMul(t *testing.T) {
	shapes := [][3]int{{0, 3, 2}, {3, 0, 2}, {3, 2, 0}, {200, 300, 500}, {5, 8000, 3}, {8000, 3, 40}, {129, 481, 193}}
	for i, n := range sizes {
		shapes = append(shapes, [3]int{n, sizes[(i*7+3)%len(sizes)], sizes[(i*11+5)%len(sizes)]})
	}

	for _, s := range shapes {
		m := s[0]
		n := s[1]
		k := s[2]
		for form := range 16 {
			o := Product{TransA: form&1 != 0, TransB: form&2 != 0, Minus: form&4 != 0, Accumulate: form&8 != 0}
			a := random(1, m, k)
			b := random(2, k, n)
			c := random(3, m, n)
			want := c.Clone()
			if !o.Accumulate {
				want.Zero()
			}

			if m > 0 && n > 0 && k > 0 {
				var p mat.Dense
				p.Mul(dense(a), dense(b))
				if o.Minus {
					p.Scale(-1, &p)
				}

				p.Add(&p, dense(want))
				want = fromDense(&p)
			}

			if o.TransA {
				a = a.T()
			}
			if o.TransB {
				b = b.T()
			}

			got := gapped(c)
			Solver{}.Mul(got, gapped(a), gapped(b), o)
			within(t, "product", got, want, 4)
		}
	}
}

// TestKernels: every kernel against the portable one, which is compared with gonum through the others.
func TestKernels(t *testing.T) {
	for n := range 70 {
		x, y := random(1, 1, n).Data, random(2, 1, n).Data
		if d := math.Abs(kernel.dot(x, y) - dotPortable(x, y)); d > 1e-14*float64(n+1) {
			t.Errorf("dot of %d: off by %g", n, d)
		}

		a, b := append(slices.Clone(y), 9), append(slices.Clone(y), 9)
		kernel.axpy(a[:n], 0.5, x)
		axpyPortable(b[:n], 0.5, x)
		within(t, "axpy", Of(a, 1, n+1), Of(b, 1, n+1), 1)

		p := slices.Clone(x)
		q := slices.Clone(y)
		r := slices.Clone(x)
		s := slices.Clone(y)
		kernel.rotate(p, q, 0.6, 0.8)
		rotatePortable(r, s, 0.6, 0.8)
		within(t, "rotation", Of(append(p, q...), 2, n), Of(append(r, s...), 2, n), 1)
	}
}

// TestThreads: the same bits for any number of threads.
func TestThreads(t *testing.T) {
	one, many := Solver{Threads: 1}, Solver{Threads: 5}
	same := func(what string, f func(s Solver) []Matrix) {
		a, b := f(one), f(many)
		for i := range a {
			for r := range a[i].Rows {
				if !slices.Equal(a[i].Row(r), b[i].Row(r)) {
					t.Errorf("%s: threads show in the result", what)
					return
				}
			}
		}
	}

	x, h := random(1, 300, 280), positive(2, 290)
	same("product", func(s Solver) []Matrix {
		c := New(300, 300)
		s.Mul(c, x, x,
			Product{TransB: true})
		return []Matrix{c}
	})

	same("Cholesky", func(s Solver) []Matrix { c := h.Clone(); check(t, s.Cholesky(c, false)); return []Matrix{c} })
	same("inverse factor", func(s Solver) []Matrix { c := h.Clone(); check(t, s.InverseFactor(c)); return []Matrix{c} })
	same("QR", func(s Solver) []Matrix { q, r, err := s.QR(x); check(t, err); return []Matrix{q, r} })
	same("eigenvectors", func(s Solver) []Matrix {
		d, v, err := s.SymEigen(h)
		check(t, err)
		return []Matrix{v, Of(d, 1, len(d))}
	})

	same("SVD", func(s Solver) []Matrix {
		u, d, v, err := s.SVD(x)
		check(t, err)
		return []Matrix{u, v, Of(d, 1, len(d))}
	})

	same("sketch", func(s Solver) []Matrix {
		u, d, v, err := s.TruncatedSVD(x, 9, Sketch{Seed: 4})
		check(t, err)
		return []Matrix{u, v, Of(d, 1, len(d))}
	})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNorm(t *testing.T) {
	for _, f := range []float64{1, 1e200, 1e-200} {
		a := Of([]float64{3 * f, 0, 0, -4 * f}, 2, 2)
		if got := a.Norm(); math.Abs(got-5*f) > 1e-15*5*f {
			t.Errorf("norm %g, want %g", got, 5*f)
		}
	}
}
