package cpu

import (
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// TestGradientsStayInside runs the gradients on operands that end where memory ends.
func TestGradientsStayInside(t *testing.T) {
	var fences [9]fence
	for i := range fences {
		fences[i] = newFence(t, 1<<16)
	}

	for _, disable := range []string{"", "avx512"} {
		t.Setenv("COMPRESS_CPU_DISABLE", disable)
		o := New(Options{Threads: 1}).Ops()
		for n := 1; n <= 70; n++ {
			at := func(i int, d kernels.DType, rows, cols int) kernels.Mat { return fences[i].mat(t, d, rows, cols) }
			m := func(i, rows int) kernels.Mat { return at(i, kernels.F32, rows, n) }
			for f := kernels.SiLU; f <= kernels.ReLU; f++ {
				o.ActivateBackward(m(0, 2), m(1, 2), m(2, 2), f)
				o.GateBackward(m(0, 2), m(1, 2), m(2, 2), m(3, 2), m(4, 2), f)
			}

			o.SoftcapBackward(m(0, 2), m(1, 2), m(2, 2), 3)
			o.SoftmaxBackward(m(0, 2), m(1, 2), m(2, 2))
			o.CrossEntropyBackward(m(0, 2), at(1, kernels.F64, 1, 2), m(2, 2), []int32{0, int32(n - 1)}, 1)
			o.RMSNormBackward(m(0, 2), m(1, 1), m(2, 2), m(3, 2), m(4, 1), 1e-5, false)
			o.LayerNormBackward(m(0, 2), m(1, 1), m(2, 1), m(3, 2), m(4, 2), m(5, 1), 1e-5)
			o.GatherBackward(m(0, 2), m(1, 2), []int32{1, 1}, 1)
			o.ColSum(at(0, kernels.F64, 1, n), m(1, 6))
			o.AddSquare(m(0, 2), m(1, 2), 1)

			for _, rows := range []int{1, 3, 20, 40} {
				m := func(i int) kernels.Mat { return at(i, kernels.F32, rows, 2*n) }
				a := kernels.Attention{Heads: 2, KVHeads: 2, HeadDim: n, Scale: 1, LSE: at(8, kernels.F32, rows, 2)}
				o.AttentionBackward(m(0), m(1), m(2), m(3), m(4), m(5), m(6), m(7), a)
			}
		}
	}
}
