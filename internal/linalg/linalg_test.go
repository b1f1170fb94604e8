package linalg

import "math/rand/v2"

// random is a matrix of normal values.
func random(seed uint64, rows, cols int) Matrix {
	rng := rand.New(rand.NewPCG(seed, 7))
	a := New(rows, cols)
	for i := range a.Data {
		a.Data[i] = rng.NormFloat64()
	}
	return a
}

// positive is a symmetric matrix with eigenvalues from 1/condition to 1, roughly.
func positive(seed uint64, n int) Matrix {
	x := random(seed, n+n/2+3, n)
	h := New(n, n)
	Solver{}.Mul(h, x, x, Product{TransA: true})
	return h
}
