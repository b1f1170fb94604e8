package linalg_test

import (
	"fmt"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
)

// SparseGPT's factor of a Hessian that is singular: damping makes it positive, and says how much was needed.
func ExampleSolver_DampedInverseFactor() {
	h := kernels.MatOf(kernels.WrapF32([]float32{1, 1, 1, 1}), 2, 2)
	u := kernels.MatOf(kernels.NewHost(kernels.F32, 4), 2, 2)
	d, err := linalg.Solver{}.DampedInverseFactor(u, h, 0)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%.4f damping %g at try %d\n", u.Buf.F32(), d.Share, d.Tries)
	// Output: [7.0886 -7.0185 0.0000 0.9950] damping 0.01 at try 1
}

func ExampleSolver_SVD() {
	a := linalg.Of([]float64{0, 2, 3, 0}, 2, 2)
	_, values, _, err := linalg.Solver{}.SVD(a)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%.1f\n", values)
	// Output: [3.0 2.0]
}

func ExampleSolver_CholeskySolve() {
	var s linalg.Solver
	a, b := linalg.Of([]float64{4, 2, 2, 3}, 2, 2), linalg.Of([]float64{8, 7}, 2, 1)
	if err := s.Cholesky(a, false); err != nil {
		panic(err)
	}
	if err := s.CholeskySolve(a, b, false); err != nil {
		panic(err)
	}

	fmt.Printf("%.2f\n", b.Data)
	// Output: [1.25 1.50]
}

func ExampleMaxAssignment() {
	columns, sum, err := linalg.MaxAssignment(linalg.Of([]float64{7, 5, 1, 6, 2, 1, 9, 8, 1}, 3, 3))
	if err != nil {
		panic(err)
	}
	fmt.Println(columns, sum)
	// Output: [0 2 1] 16
}
