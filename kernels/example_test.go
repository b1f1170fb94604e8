package kernels_test

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// One linear layer, y = x·wᵀ, on the reference backend; every other backend takes the same call.
func Example() {
	dev := ref.New()
	x := kernels.MatOf(kernels.WrapF32([]float32{1, 2}), 1, 2)             // [tokens, in]
	w := kernels.MatOf(kernels.WrapF32([]float32{1, 0, 0, 1, 1, 1}), 3, 2) // [out, in]
	y := kernels.MatOf(kernels.NewHost(kernels.F32, 3), 1, 3)              // [tokens, out]
	dev.Ops().MatMulNT(y, x, w, kernels.MatMul{})
	fmt.Println(y.RowF32(0))
	// Output: [1 2 3]
}
