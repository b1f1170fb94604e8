package exact

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
)

// problem is a random matrix with masks of all densities.
func problem(rows, n int, seed uint64) Job {
	random := rand.New(rand.NewPCG(seed, 9))
	j := Job{
		W:    kernels.MatOf(kernels.NewHost(kernels.F32, rows*n), rows, n),
		Mask: kernels.MatOf(kernels.NewHost(kernels.U8, rows*n), rows, n), H: linalg.New(n, n), Damping: .01,
	}
	x := linalg.New(n+3, n)
	for i := range x.Data {
		x.Data[i] = random.NormFloat64() + .5
	}
	linalg.Solver{}.Mul(j.H, x, x, linalg.Product{TransA: true})
	for i := range rows {
		density := random.Float64() * 1.2
		for k := range n {
			j.W.RowF32(i)[k] = float32(random.NormFloat64())
			if random.Float64() < density {
				j.Mask.RowU8(i)[k] = 1
			}
		}
	}
	return j
}

// dense is the least squares of a row by an orthogonal decomposition: with A = RᵀR, ‖R_K·w' - R·w‖.
func dense(t *rapid.T, j Job, i int, w []float32) []float64 {
	n := len(w)
	a := j.H.Clone()
	mean := 0.0
	for k := range n {
		mean += a.At(k, k) / float64(n)
	}
	for k := range n {
		a.Set(k, k, a.At(k, k)+j.Damping*mean)
	}
	s := linalg.Solver{}
	if err := s.Cholesky(a, true); err != nil {
		t.Fatal(err)
	}

	var stay []int
	for k, keep := range j.Mask.RowU8(i) {
		if keep != 0 {
			stay = append(stay, k)
		}
	}
	out := make([]float64, n)
	if len(stay) == 0 {
		return out
	}
	left, right := linalg.New(n, len(stay)), linalg.New(n, 1)
	for r := range n {
		for c, k := range stay {
			left.Set(r, c, a.At(r, k))
		}
		for k, v := range w {
			right.Set(r, 0, right.At(r, 0)+a.At(r, k)*float64(v))
		}
	}
	x, err := s.LeastSquares(left, right)
	if err != nil {
		t.Fatal(err)
	}
	for c, k := range stay {
		out[k] = x.At(c, 0)
	}
	return out
}

// TestExact: both forms give what a decomposition of the whole problem gives.
func TestExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(rt, "inputs")
		j := problem(rapid.IntRange(1, 8).Draw(rt, "rows"), n, rapid.Uint64().Draw(rt, "seed"))
		before := slices.Clone(j.W.Buf.F32())
		d, err := j.Run()
		if err != nil {
			rt.Fatal(err)
		}
		if d.Share != .01 || d.Tries != 1 {
			rt.Fatalf("damping %+v", d)
		}

		for i := range j.W.Rows {
			want := dense(rt, j, i, before[i*n:(i+1)*n])
			for k, v := range j.W.RowF32(i) {
				if math.Abs(float64(v)-want[k]) > 1e-5*(1+math.Abs(want[k])) {
					rt.Fatalf("row %d, column %d: %g, want %g", i, k, v, want[k])
				}
				if j.Mask.RowU8(i)[k] == 0 && v != 0 {
					rt.Fatalf("row %d, column %d: pruned and %g", i, k, v)
				}
			}
		}
	})
}

// TestThreads: the weights do not depend on how many threads there are.
func TestThreads(t *testing.T) {
	var all [][]float32
	for _, threads := range []int{1, 2, 7} {
		j := problem(300, 40, 5)
		j.Threads = threads
		if _, err := j.Run(); err != nil {
			t.Fatal(err)
		}
		all = append(all, j.W.Buf.F32())
	}
	if !slices.Equal(all[0], all[1]) || !slices.Equal(all[0], all[2]) {
		t.Error("other weights with other threads")
	}
}

// TestRefused: a Hessian that is no Hessian is an error, and the caller can end the work.
func TestRefused(t *testing.T) {
	j := problem(2, 4, 1)
	j.H.Set(1, 1, math.NaN())
	if _, err := j.Run(); !errors.Is(err, linalg.ErrNonFinite) {
		t.Errorf("%v", err)
	}

	j = problem(2, 4, 1)
	enough := errors.New("enough")
	j.Stop = func() error { return enough }
	if _, err := j.Run(); !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
}
