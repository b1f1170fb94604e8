package linalg

import (
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"gonum.org/v1/gonum/mat"
	"pgregory.net/rapid"
)

func TestCholesky(t *testing.T) {
	for _, n := range sizes {
		h := positive(3, n)
		var want mat.Cholesky
		if n > 0 {
			want.Factorize(mat.NewSymDense(n, h.Clone().Data))
		}

		for _, up := range []bool{false, true} {
			l := gapped(h)
			for i := range n { // the other triangle is not read
				for j := range i {
					if up {
						l.Set(i, j, math.NaN())
					} else {
						l.Set(j, i, math.NaN())
					}
				}
			}

			check(t, Solver{}.Cholesky(l, up))
			within(t, "A = L·Lᵀ", mul(l, l, Product{TransA: up, TransB: !up}), h, 2)

			if n > 0 {
				var f mat.TriDense
				want.UTo(&f)
				w := fromDense(&f)
				if !up {
					w = w.T()
				}

				within(t, "factor against gonum", l, w, 20)
			}

			b := random(4, n, 5)
			x := b.Clone()
			check(t, Solver{}.CholeskySolve(l, x, up))
			within(t, "A·X = B", mul(h, x, Product{}), b, 100) // residuals grow with the condition, about 100 here
			check(t, Solver{}.CholeskyInverse(l, up))
			within(t, "A⁻¹·A", mul(l, h, Product{}), Identity(n), 100)
		}
	}
}

func TestTriangles(t *testing.T) {
	for _, n := range sizes {
		for form := range 8 {
			o := Triangle{Upper: form&1 != 0, Trans: form&2 != 0, Right: form&4 != 0}
			full, read := New(n, n), random(1, n, n)
			for i := range n {
				read.Set(i, i, 2*float64(n))
			}

			copyTriangle(full, read, o.Upper)

			for i := range n { // the other triangle is not read
				for j := range n {
					if full.At(i, j) == 0 {
						read.Set(i, j, math.NaN())
					}
				}
			}

			for _, m := range []int{0, 1, 7, 150} {
				b := random(2, n, m)
				if o.Right {
					b = b.T()
				}

				x := gapped(b)
				check(t, Solver{}.TriSolve(read, x, o))

				if o.Right {
					within(t, "X·T", mul(x, full, Product{TransB: o.Trans}), b, 4)
				} else {
					within(t, "T·X", mul(full, x, Product{TransA: o.Trans}), b, 4)
				}

				Solver{}.triMul(read, x, o)
				within(t, "product with a triangle", x, b, 4)
			}
		}

		for _, up := range []bool{false, true} {
			tri := random(1, n, n)
			for i := range n {
				tri.Set(i, i, 2*float64(n))
			}

			inverse := tri.Clone()
			check(t, Solver{}.TriInverse(inverse, up))
			a, b := New(n, n), New(n, n)
			copyTriangle(a, tri, up)
			copyTriangle(b, inverse, up)
			within(t, "T·T⁻¹", mul(a, b, Product{}), Identity(n), 4)
		}
	}
}

// TestIllConditionedSolve: residuals stay at rounding even where the solution does not, which is what
// substitution gives.
func TestIllConditionedSolve(t *testing.T) {
	const n = 150
	_, r, err := Solver{}.QR(conditioned(t, 5, n, n, 1e14))
	check(t, err)

	b := random(6, n, 40)
	x := b.Clone()
	check(t, Solver{}.TriSolve(r, x, Triangle{Upper: true}))
	rest := b.Clone()
	Solver{}.Mul(rest, r, x, Product{Minus: true, Accumulate: true})
	if e := rest.MaxAbs() / (r.MaxAbs() * x.MaxAbs()); e > n*epsilon {
		t.Errorf("residual %g of the product of the sizes", e)
	}
}

// TestInverseFactor: H⁻¹ = UᵀU, and U is what two Cholesky factorisations with an inverse between them give.
func TestInverseFactor(t *testing.T) {
	for _, n := range sizes {
		h := positive(5, n)
		u := gapped(h)
		for i := range n {
			for j := range i {
				u.Set(i, j, math.NaN())
			}
		}

		check(t, Solver{}.InverseFactor(u))
		w := h.Clone()
		check(t, Solver{}.Cholesky(w, false))
		check(t, Solver{}.CholeskyInverse(w, false))
		within(t, "UᵀU·H", mul(mul(u, u, Product{TransA: true}), h, Product{}), Identity(n), 100)
		check(t, Solver{}.Cholesky(w, true))
		within(t, "U against the long way", u, w, 100)
	}
}

// TestSpecDamping is the golden vector of the specification: damping and diagonal of U for 16 tokens of 8 channels.
func TestSpecDamping(t *testing.T) {
	const n = 8
	x := New(16, n)
	for p := range 16 {
		for j := range n {
			x.Set(p, j, math.Sin(1+8*float64(p)+float64(j))*(1+0.25*float64(j)))
		}
	}

	h := mul(x, x, Product{TransA: true})
	m := kernels.MatOf(kernels.NewHost(kernels.F32, n*n), n, n)
	wide := kernels.NewHost(kernels.F64, n*n)

	h.Scale(2)
	copy(wide.F64(), h.Data)
	d, err := Solver{}.DampedInverseFactor(m, kernels.MatOf(wide, n, n), 0)
	check(t, err)
	if math.Abs(d.Added-0.619514) > 1e-6 || d.Tries != 1 || d.Share != DefaultDamping {
		t.Errorf("damping %+v, want 0.619514 at the first try", d)
	}

	for i, want := range []float64{1.231969, 1.20717, 1.146467, 1.121096, 1.07176, .788746, .119928, .089444} {
		if got := float64(m.RowF32(i)[i]); math.Abs(got-want) > 2e-6 { // six digits there, float32 here
			t.Errorf("U[%d, %d] = %g, want %g", i, i, got, want)
		}
	}
}

// TestDampingLadder: more damping where less does not do, and a named error where none does.
func TestDampingLadder(t *testing.T) {
	const n = 40
	factor := func(diagonal float64) (Damping, error) { // eigenvalues diagonal-1 (once less, n times) and diagonal+n-1
		h := New(n, n)
		return Solver{}.Damped(h, 0, func(h Matrix) {
			for i := range n {
				for j := range n {
					h.Set(i, j, 1)
				}
				h.Set(i, i, diagonal)
			}
		}, Solver{}.InverseFactor)
	}

	for _, c := range []struct{ diagonal, share float64 }{{1.5, 0.01}, {0.999, 0.01}, {0.95, 0.1}, {0.6, 1}} {
		d, err := factor(c.diagonal)
		if err != nil || d.Share != c.share || math.Abs(d.Added-c.share*c.diagonal) > 1e-14 {
			t.Errorf("diagonal %g: damping %+v, error %v, want share %g", c.diagonal, d, err, c.share)
		}
	}

	d, err := factor(0.4)
	var pivot *PivotError
	if !errors.Is(err, ErrNotPositive) || !errors.As(err, &pivot) || d.Tries != 3 || pivot.Row >= n {
		t.Errorf("hopeless matrix: damping %+v, error %v", d, err)
	}

	if _, err := factor(math.NaN()); !errors.Is(err, ErrNonFinite) {
		t.Errorf("NaN on the diagonal: error %v", err)
	}

	for _, share := range []float64{-1, 2, math.NaN()} {
		if _, err := (Solver{}).Damped(New(1, 1), share, func(Matrix) {}, Solver{}.InverseFactor); err == nil {
			t.Errorf("damping %g is taken", share)
		}
	}
}

func TestNotPositive(t *testing.T) {
	for _, n := range []int{1, 31, 33, 100, 130} {
		for _, bad := range []int{0, n / 2, n - 1} {
			for _, v := range []float64{-1, 0, math.NaN(), math.Inf(1)} {
				h := Identity(n)
				h.Set(bad, bad, v)

				for name, f := range map[string]func(Matrix) error{
					"lower":   func(a Matrix) error { return Solver{}.Cholesky(a, false) },
					"upper":   func(a Matrix) error { return Solver{}.Cholesky(a, true) },
					"inverse": Solver{}.InverseFactor,
				} {
					var pivot *PivotError
					if err := f(h.Clone()); !errors.As(err, &pivot) || pivot.Row != bad ||
						!errors.Is(err, ErrNotPositive) {
						t.Errorf("%s, %d rows, %g in row %d: error %v", name, n, v, bad, err)
					}
				}
			}
		}
	}

	z := Identity(40)
	z.Set(35, 35, 0)

	for _, err := range []error{
		Solver{}.TriSolve(z, New(40, 2), Triangle{}), Solver{}.TriInverse(z, true), Solver{}.CholeskyInverse(z, false),
		Solver{}.CholeskySolve(z, New(40, 1), true),
	} {
		if !errors.Is(err, ErrSingular) {
			t.Errorf("singular triangle: error %v", err)
		}
	}
}

// TestFactorAccuracy states what float32 users get: U differs from the factor of the exact float32 input by rounding to
// float32 alone, whatever the condition.
func TestFactorAccuracy(t *testing.T) {
	const n = 200
	x := conditioned(t, 9, n, n, 100) // condition of H: 1e4
	h := mul(x, x, Product{TransA: true})
	m := kernels.MatOf(kernels.NewHost(kernels.F32, n*n), n, n)
	h.ToF32(m)

	u := kernels.MatOf(kernels.NewHost(kernels.F32, n*n), n, n)
	_, err := Solver{}.DampedInverseFactor(u, m, 1e-4)
	check(t, err)
	var c mat.Cholesky
	exact := mat.NewSymDense(n, FromMat(m).Data)
	mean := mat.Trace(exact) / n
	for i := range n {
		exact.SetSym(i, i, exact.At(i, i)+1e-4*mean)
	}

	c.Factorize(exact)
	var inverse mat.SymDense
	check(t, c.InverseTo(&inverse))
	c.Factorize(&inverse)
	var f mat.TriDense
	c.UTo(&f)
	if d := diff(FromMat(u), fromDense(&f)); d > 1e-7 {
		t.Errorf("differs from gonum's by %g of the largest", d)
	}
}

func TestCholeskyProperty(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 130).Draw(r, "n")
		h := positive(rapid.Uint64().Draw(r, "seed"), n)
		up := rapid.Bool().Draw(r, "upper")
		l := h.Clone()
		if err := (Solver{}).Cholesky(l, up); err != nil {
			r.Fatal(err)
		}
		if d := diff(mul(l, l, Product{TransA: up, TransB: !up}), h); d > 1e-14 {
			r.Fatalf("A - L·Lᵀ is %g", d)
		}

		u := h.Clone()
		if err := (Solver{}).InverseFactor(u); err != nil {
			r.Fatal(err)
		}

		for i := range n {
			if !(u.At(i, i) > 0) {
				r.Fatalf("diagonal of U: %g", u.At(i, i))
			}
		}
	})
}
