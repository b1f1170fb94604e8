package actstats

import "github.com/modelcompress/compress/kernels"

// Idle reports whether all that is needed, of the inputs of a matrix and of its gradients g, is 0: scores made of
// it are 0 then, and it makes no difference which weights go.
func Idle(needs Set, g kernels.Mat, squares, sums, variances []float64) bool {
	needs &= SumSquares | Sums | Variances | Gradients
	return needs != 0 &&
		(needs&SumSquares == 0 || zeros(squares)) &&
		(needs&Sums == 0 || zeros(sums)) &&
		(needs&Variances == 0 || zeros(variances)) &&
		(needs&Gradients == 0 || zeroMat(g))
}

// zeroMat reports whether a matrix in host memory, F16 or F32, is all zeros of either sign.
func zeroMat(g kernels.Mat) bool {
	for i := range g.Rows {
		if g.DType() == kernels.F32 {
			if !zeros(g.RowF32(i)) {
				return false
			}
			continue
		}

		for _, v := range g.RowU16(i) {
			if v&0x7fff != 0 {
				return false
			}
		}
	}

	return g.Rows > 0
}

func zeros[T float32 | float64](values []T) bool {
	for _, v := range values {
		if v != 0 {
			return false
		}
	}
	return len(values) > 0
}
