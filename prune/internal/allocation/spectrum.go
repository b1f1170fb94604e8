package allocation

import (
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
)

// ExponentOf fits the tail of the spectrum of a matrix, F32 in host memory; see [Exponent].
func ExponentOf(m kernels.Mat, peak bool, threads int) (float64, error) {
	a, solver := linalg.FromMat(m), linalg.Solver{Threads: threads}
	n := min(a.Rows, a.Cols)
	gram := linalg.New(n, n)
	solver.Mul(gram, a, a, linalg.Product{TransA: a.Rows > a.Cols, TransB: a.Rows <= a.Cols})
	values, err := solver.SymEigenvalues(gram)
	if err != nil {
		return 0, err
	}
	return Exponent(values, peak), nil
}
