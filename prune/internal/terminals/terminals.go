// Package terminals gives formulas what was measured of a matrix's inputs. It stands apart from the measuring, which
// knows nothing of formulas, and has two users: pruning by a formula and the search for one.
package terminals

import (
	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/kernels"
)

// Of gives the statistics that a formula uses, as its terminals: X, H = 2·X, and Xm and Xv over all
// tokens, Hi from the factor of the inverse Hessian.
func Of(in actstats.Inputs, uses func(gp.Symbol) bool) (t gp.Inputs, err error) {
	perToken := float64(in.Sequences) / float64(in.Tokens)
	if uses(gp.X) {
		t.X = vector(in.SumSquares, func(j int) float64 { return in.SumSquares[j] })
	}
	if uses(gp.H) {
		t.Hess = vector(in.SumSquares, func(j int) float64 { return 2 * in.SumSquares[j] })
	}
	if uses(gp.Xm) {
		t.Mean = vector(in.Sums, func(j int) float64 { return in.Sums[j] * perToken })
	}

	if uses(gp.Xv) {
		t.Var = vector(in.Sums, func(j int) float64 {
			mean := in.Sums[j] * perToken
			return max(0, in.SumSquares[j]*perToken-mean*mean)
		})
	}

	if uses(gp.Hi) {
		u, err := in.Factor()
		if err != nil {
			return t, err
		}
		t.Inv = inverseDiagonal(u)
	}

	return t, nil
}

func vector(of []float64, f func(j int) float64) []float32 {
	out := make([]float32, len(of))
	for j := range of {
		out[j] = float32(f(j))
	}
	return out
}

// inverseDiagonal is the diagonal of H⁻¹ = UᵀU.
func inverseDiagonal(u kernels.Mat) []float32 {
	sums := make([]float64, u.Cols)
	for i := range u.Rows {
		for j, v := range u.RowF32(i)[i:] {
			sums[i+j] += float64(v) * float64(v)
		}
	}
	return vector(sums, func(j int) float64 { return sums[j] })
}
