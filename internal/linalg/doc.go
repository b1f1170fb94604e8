// Package linalg is dense linear algebra in float64 on row-major matrices in host memory: products, triangular
// solves, Cholesky and the factor of the inverse that SparseGPT needs, QR, symmetric eigenproblems, singular
// values, least squares and the assignment problem.
//
// Everything large is cut, mostly by halving, until it is matrix products, which run on packed blocks with
// AVX-512, AVX2 or portable kernels. Results do not depend on the number of threads: what is added to what, and
// in which order, is given by the shapes and by the instruction set. A Solver holds no state; its methods may
// run at the same time.
//
// Shapes that do not fit are a caller's bug and panic with a constant string. Everything that a matrix's values
// can cause is an error that wraps a sentinel of this package.
package linalg
