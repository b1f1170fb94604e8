package spectral

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/internal/linalg"
)

// normal is a matrix of random numbers.
func normal(r *rand.Rand, rows, cols int) linalg.Matrix {
	m := linalg.New(rows, cols)
	for i := range m.Data {
		m.Data[i] = r.NormFloat64()
	}
	return m
}

// byDecomposition is the definition of TSV-M, with three singular value decompositions.
func byDecomposition(t *testing.T, deltas []linalg.Matrix) linalg.Matrix {
	t.Helper()
	var s linalg.Solver
	rows, cols := deltas[0].Rows, deltas[0].Cols

	keep := max(1, min(rows, cols)/len(deltas))
	left, right := linalg.New(rows, keep*len(deltas)), linalg.New(cols, keep*len(deltas))
	var scales []float64
	for j, d := range deltas {
		u, values, v, err := s.SVD(d)
		if err != nil {
			t.Fatal(err)
		}

		left.Sub(0, rows, j*keep, (j+1)*keep).Copy(u.Sub(0, rows, 0, keep))
		right.Sub(0, cols, j*keep, (j+1)*keep).Copy(v.Sub(0, cols, 0, keep))
		scales = append(scales, values[:keep]...)
	}

	left, right = nearest(t, left), nearest(t, right)
	for r := range rows {
		for c, v := range scales {
			left.Row(r)[c] *= v
		}
	}

	out := linalg.New(rows, cols)
	s.Mul(out, left, right, linalg.Product{TransB: true})
	return out
}

func nearest(t *testing.T, m linalg.Matrix) linalg.Matrix {
	t.Helper()
	var s linalg.Solver
	u, _, v, err := s.SVD(m)
	if err != nil {
		t.Fatal(err)
	}
	out := linalg.New(m.Rows, m.Cols)
	s.Mul(out, u, v, linalg.Product{TransB: true})
	return out
}

// far is the distance of two matrices, as a share of the second.
func far(a, b linalg.Matrix) float64 {
	d := a.Clone()
	for i := range d.Data {
		d.Data[i] -= b.Data[i]
	}
	return d.Norm() / b.Norm()
}

// parts gives matrices in parts, and collects the result.
func parts(list []linalg.Matrix) (Parts, linalg.Matrix) {
	out := linalg.New(list[0].Rows, list[0].Cols)
	return Parts{
		Rows: out.Rows, Cols: out.Cols, N: len(list),
		Read: func(j, row, col int, dst linalg.Matrix) error {
			dst.Copy(list[j].Sub(row, row+dst.Rows, col, col+dst.Cols))
			return nil
		},
		Write: func(row, col int, m linalg.Matrix) error {
			out.Sub(row, row+m.Rows, col, col+m.Cols).Copy(m)
			return nil
		},
	}, out
}

// TestTaskSingularIsItsDefinition: through Gram matrices the result is that of whole decompositions, to 1e-7 at
// worst, which is what squaring a ratio of 1e4 leaves; wide, tall and square, for several numbers of models,
// and where singular values fall over eight orders of magnitude, where decompositions are made.
func TestTaskSingularIsItsDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		rows, cols, n int
		fall          float64
	}{
		{60, 100, 2, 1},
		{100, 60, 2, 1},
		{64, 64, 2, 1},
		{60, 90, 3, 1},
		{96, 70, 10, 1},
		{40, 600, 2, 1},
		{600, 40, 3, 1},
		{50, 80, 2, 0.66},
		{40, 40, 1, 1},
	} {
		var deltas []linalg.Matrix
		for range c.n {
			d := normal(r, c.rows, c.cols)
			if c.fall != 1 {
				u, values, v, err := linalg.Solver{}.SVD(d)
				if err != nil {
					t.Fatal(err)
				}

				for i := range values {
					u.Sub(0, u.Rows, i, i+1).Scale(math.Pow(c.fall, float64(i)))
				}

				linalg.Solver{}.Mul(d, u, v, linalg.Product{TransB: true})
			}

			deltas = append(deltas, d)
		}

		got, err := TaskSingular(c.rows, c.cols, c.n, func(j int, dst linalg.Matrix) { dst.Copy(deltas[j]) },
			linalg.Solver{})
		if err != nil {
			t.Fatal(err)
		}

		if d := far(got, byDecomposition(t, deltas)); !(d < 1e-7) {
			t.Errorf("%+v: %g from the definition", c, d)
		}

		p, out := parts(deltas)
		if err := p.TaskSingular(linalg.Solver{}); err != nil {
			t.Fatal(err)
		}
		if d := far(out, got); !(d < 1e-7) {
			t.Errorf("%+v: in parts %g apart", c, d)
		}
	}
}

// TestIsotropicHasEqualValues: the result's singular values are all the mean of the original's, and its
// singular vectors are the original's: with them it is diagonal. Also for a nearly singular matrix.
func TestIsotropicHasEqualValues(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var s linalg.Solver
	nearly := normal(r, 40, 50)
	nearly.Sub(7, 8, 0, 50).Scale(1e-9)

	for _, m := range []linalg.Matrix{normal(r, 40, 70), normal(r, 70, 40), normal(r, 48, 48), nearly} {
		got, err := Isotropic(m, s)
		if err != nil {
			t.Fatal(err)
		}

		u, values, v, err := s.SVD(m)
		if err != nil {
			t.Fatal(err)
		}

		want := linalg.New(m.Rows, m.Cols)
		u.Scale(average(values))
		s.Mul(want, u, v, linalg.Product{TransB: true})
		if d := far(got, want); !(d < 1e-7) {
			t.Errorf("[%d, %d]: %g from the definition", m.Rows, m.Cols, d)
		}

		half := m.Clone()
		half.Scale(0.5)
		p, out := parts([]linalg.Matrix{half, half})
		if err := p.Isotropic(s); err != nil {
			t.Fatal(err)
		}
		if d := far(out, got); !(d < 1e-7) {
			t.Errorf("[%d, %d]: in parts %g apart", m.Rows, m.Cols, d)
		}
	}
}

// TestDegenerate: matrices without rank, or with more models than directions, give finite results.
func TestDegenerate(t *testing.T) {
	zero := linalg.New(6, 9)
	one := linalg.New(6, 9)
	one.Set(2, 3, 5)

	for _, m := range []linalg.Matrix{zero, one} {
		a, err := Isotropic(m, linalg.Solver{})
		if err == nil {
			err = a.CheckFinite()
		}
		if err != nil {
			t.Error(err)
		}

		for _, n := range []int{1, 2, 8} {
			b, err := TaskSingular(6, 9, n, func(_ int, dst linalg.Matrix) { dst.Copy(m) }, linalg.Solver{})
			if err == nil {
				err = b.CheckFinite()
			}
			if err != nil {
				t.Error(n, err)
			}
		}
	}
}

// TestStop: a solver's Stop ends the work within a decomposition, with its error.
func TestStop(t *testing.T) {
	stop := errors.New("enough")
	m := normal(rand.New(rand.NewPCG(5, 6)), 90, 120)
	asked := 0
	s := linalg.Solver{Stop: func() error {
		asked++
		if asked > 4 {
			return stop
		}
		return nil
	}}

	if _, err := Isotropic(m, s); !errors.Is(err, stop) {
		t.Errorf("Iso-C: %v", err)
	}

	asked = 0
	if _, err := TaskSingular(90, 120, 2, func(_ int, dst linalg.Matrix) { dst.Copy(m) }, s); !errors.Is(err, stop) {
		t.Errorf("TSV-M: %v", err)
	}

	asked = 4
	x := make([]float32, 12)
	if err := RegMean(x, [][]float32{x}, [][]float32{make([]float32, 9)}, 3, 1, false, s); !errors.Is(err, stop) {
		t.Errorf("RegMean: %v", err)
	}
}

// BenchmarkMethods merges two random differences.
func BenchmarkMethods(b *testing.B) {
	for _, shape := range [][2]int{{512, 512}, {1024, 4096}} {
		r := rand.New(rand.NewPCG(1, 2))
		deltas := []linalg.Matrix{normal(r, shape[0], shape[1]), normal(r, shape[0], shape[1])}
		name := map[int]string{512: "512x512", 1024: "1024x4096"}[shape[0]]
		b.Run("tsv_m/"+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := TaskSingular(shape[0], shape[1], 2, func(j int, dst linalg.Matrix) { dst.Copy(deltas[j]) },
					linalg.Solver{}); err != nil {
					b.Fatal(err)
				}
			}
		})

		b.Run("iso_c/"+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Isotropic(deltas[0], linalg.Solver{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
