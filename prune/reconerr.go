package prune

import (
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
)

// errorRows is how many rows of a matrix a change is measured on.
const errorRows = 64

// outputError gives ‖ΔW·X‖²/‖W·X‖² of zeroing what the mask drops, and of the new weights, on up to errorRows rows
// spread over the matrix, from the Hessian, a multiple of XXᵀ. Columns in dead, of inputs that are always 0, do
// not count. ok is false if the outputs are 0. before and after are F32 in host memory.
func outputError(before, after kernels.Mat, keep []byte, h linalg.Matrix, dead []int,
	threads int,
) (masked, updated float64, ok bool) {
	// ‖d·X‖² = d·XXᵀ·dᵀ, so that the Hessian stands for all tokens; a factor of it cancels in the quotient.
	n := min(errorRows, before.Rows)
	w := linalg.New(n, before.Cols)
	zeroed := linalg.New(n, before.Cols)
	changed := linalg.New(n, before.Cols)
	for k := range n {
		i := k * before.Rows / n
		old, now := before.RowF32(i), after.RowF32(i)
		for j, v := range old {
			w.Set(k, j, float64(v))
			changed.Set(k, j, float64(now[j])-float64(v))
			if keep[i*before.Cols+j] == 0 {
				zeroed.Set(k, j, -float64(v))
			}
		}

		for _, j := range dead {
			w.Set(k, j, 0)
			zeroed.Set(k, j, 0)
			changed.Set(k, j, 0)
		}
	}

	s := linalg.Solver{Threads: threads}
	total := s.Energy(w, h)
	if !(total > 0) {
		return 0, 0, false
	}

	return s.Energy(zeroed, h) / total, s.Energy(changed, h) / total, true
}

// zeroingErrors gives ‖ΔW·X‖²/‖W·X‖² of zeroing what each of two masks, U8 [out, in], drops, on the rows of
// [outputError], from the Hessian as there.
func zeroingErrors(w, first, second kernels.Mat, h linalg.Matrix, dead []int,
	threads int,
) (a, b float64, ok bool) {
	n := min(errorRows, w.Rows)
	all := linalg.New(n, w.Cols)
	one := linalg.New(n, w.Cols)
	two := linalg.New(n, w.Cols)
	for k := range n {
		i := k * w.Rows / n
		before, after := first.RowU8(i), second.RowU8(i)
		for j, v := range w.RowF32(i) {
			all.Set(k, j, float64(v))
			if before[j] == 0 {
				one.Set(k, j, float64(v))
			}
			if after[j] == 0 {
				two.Set(k, j, float64(v))
			}
		}

		for _, j := range dead {
			all.Set(k, j, 0)
			one.Set(k, j, 0)
			two.Set(k, j, 0)
		}
	}

	s := linalg.Solver{Threads: threads}
	total := s.Energy(all, h)
	if !(total > 0) {
		return 0, 0, false
	}
	return s.Energy(one, h) / total, s.Energy(two, h) / total, true
}

// maskErrors gives ‖ΔW·X‖²/‖W·X‖² of zeroing what each of two masks drops, on up to errorRows rows spread over the
// matrix, over tokens [n, in] that reach it. ok is false if the outputs are 0. Weights and tokens are F32 in
// host memory.
// There is no Hessian here: the metrics that this is for want no more than sums of the inputs.
func maskErrors(w, tokens kernels.Mat, first, second []byte, threads int) (a, b float64, ok bool) {
	n := min(errorRows, w.Rows)
	all := linalg.New(n, w.Cols)
	one := linalg.New(n, w.Cols)
	two := linalg.New(n, w.Cols)
	for k := range n {
		// Spread over all rows: the first ones would be those of a single head.
		i := k * w.Rows / n
		for j, v := range w.RowF32(i) {
			all.Set(k, j, float64(v))
			// What the mask drops is the change of the weights: its product with the tokens is the error.
			if first[i*w.Cols+j] == 0 {
				one.Set(k, j, float64(v))
			}
			if second[i*w.Cols+j] == 0 {
				two.Set(k, j, float64(v))
			}
		}
	}

	x, s := linalg.FromMat(tokens), linalg.Solver{Threads: threads}
	total := outputNorm(s, all, x)
	if !(total > 0) { // NaN too
		return 0, 0, false
	}

	return outputNorm(s, one, x) / total, outputNorm(s, two, x) / total, true
}

// outputNorm is ‖d·xᵀ‖².
func outputNorm(s linalg.Solver, d, x linalg.Matrix) (sum float64) {
	p := linalg.New(d.Rows, x.Rows)
	s.Mul(p, d, x, linalg.Product{TransB: true})
	for _, v := range p.Data {
		sum += v * v
	}
	return sum
}
