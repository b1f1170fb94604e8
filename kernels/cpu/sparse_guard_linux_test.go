package cpu

import (
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// TestSparseReadsNothingPastTheEnd runs products and expansions on operands that end where memory ends.
func TestSparseReadsNothingPastTheEnd(t *testing.T) {
	var fences [4]fence
	for i := range fences {
		fences[i] = newFence(t, 1<<16)
	}

	rng := rand.New(rand.NewPCG(1, 2))
	devices := sparseDevices(1)
	for i, k := range []int{1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 96, 100, 128, 160} {
		for _, typ := range weightTypes {
			for _, n := range []int{1, 3, 4, 5, 32, 37, 64} {
				share := []float64{0.02, 0.3, 0.7, 1}[(i+n)%4]
				dense := pruned(rng, typ, n, k, func(int) float64 { return share })
				at := 0
				w := sparseOf(dense, func(typ kernels.DType, size int) *kernels.Buffer {
					at++
					return fences[at-1].mat(t, typ, 1, size).Buf
				})

				for _, m := range []int{1, 2, 3, 4, 5, 17, 33} {
					x := fences[3].mat(t, kernels.F32, m, k)
					for j := range m {
						clear(x.RowF32(j))
					}

					dst := newMat(kernels.F32, m, n, 0)
					for _, d := range devices {
						d.ops.MatMulSparse(dst, x, w, kernels.MatMul{Precision: kernels.Precision(m % 2)})
					}
				}

				for _, d := range devices {
					d.ops.Expand(fences[3].mat(t, typ, n, k), w)
				}
			}
		}
	}
}
