package linalg

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestLowRankFactor: a matrix of rank r has a factor of r rows, noise below the tolerance does not count, and what is
// left out is bounded by it; a matrix of more rows than are allowed has none, and one of zeros a factor without rows.
func TestLowRankFactor(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	var s Solver
	gram := func(rank, n int, size float64) Matrix {
		x := New(rank, n)
		for i := range x.Data {
			x.Data[i] = size * r.NormFloat64()
		}
		return s.Times(x, x, Product{TransA: true})
	}

	const n, tolerance = 40, 1e-9
	for _, rank := range []int{0, 1, 7, 20} {
		a := gram(rank, n, 1)
		for i, v := range gram(n, n, 1e-7).Data { // noise of full rank
			if rank > 0 {
				a.Data[i] += v
			}
		}

		l, ok := LowRankFactor(a, tolerance, 20)
		if !ok || l.Rows != rank || rank > 0 && l.Cols != n {
			t.Fatalf("rank %d: %d × %d, %v", rank, l.Rows, l.Cols, ok)
		}
		if rank == 0 {
			continue
		}

		trace := 0.0
		for i := range n {
			trace += a.At(i, i)
		}
		again := s.Times(l, l, Product{TransA: true})
		for i, v := range again.Data {
			if math.Abs(v-a.Data[i]) > tolerance*trace {
				t.Fatalf("rank %d, element %d: %g, want %g", rank, i, v, a.Data[i])
			}
		}

		if _, ok := LowRankFactor(a, tolerance, rank-1); ok {
			t.Errorf("rank %d in %d rows", rank, rank-1)
		}
	}

	if _, ok := LowRankFactor(gram(n, n, 1), tolerance, n/2); ok {
		t.Error("a matrix of full rank in half of the rows")
	}
}
