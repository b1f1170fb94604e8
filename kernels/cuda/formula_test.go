//go:build linux && (amd64 || arm64)

package cuda

import (
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// everything uses all operations and kinds of inputs.
var everything = Formula{
	{Op: LoadMatrix},
	{Op: LoadMatrix, Arg: 1},
	{Op: LoadCol},
	{Op: LoadRow, Arg: 1},
	{Op: Affine, A: 0},
	{Op: Square, A: 4},
	{Op: Negate, A: 5},
	{Op: Absolute, A: 6},
	{Op: Logarithm, A: 7},
	{Op: Exponential, A: 8},
	{Op: Root, A: 2},
	{Op: HyperbolicTangent, A: 1},
	{Op: Plus, A: 9, B: 10},
	{Op: Minus, A: 12, B: 11},
	{Op: Times, A: 13, B: 3},
	{Op: Quotient, A: 14, B: 2},
	{Op: Least, A: 15, B: 0},
	{Op: Most, A: 16, B: 1},
}

// TestAssemblerAcceptsFormulas assembles every kernel with a formula in it, for every type of weight.
func TestAssemblerAcceptsFormulas(t *testing.T) {
	ptxas := assembler(t)
	for _, kernel := range []string{"formula_score", "formula_stat", "formula_vector", "formula_select"} {
		for _, w := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
			text, err := formulaModule(kernel, everything, []kernels.DType{w, kernels.F32})
			if err != nil {
				t.Fatal(err)
			}
			assemble(t, ptxas, kernel, "sm_80", []byte(text))
		}
	}
}
