//go:build !race

package cpu

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// TestSparseAllocations bounds the garbage of a product with a sparse weight, which is none that grows with the
// shapes. (The race detector empties pools at random, so it is left out there.)
func TestSparseAllocations(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, typ := range weightTypes {
		w := sparseOf(pruned(rng, typ, 300, 256, func(int) float64 { return 0.4 }), kernels.NewHost)
		for _, m := range []int{1, 9, 40, 300} {
			x := randomMat(rng, kernels.F32, m, 256, 0)
			dst := newMat(kernels.F32, m, 300, 0)
			d := sparseDevice(detect(""), 1)
			runtime.GC()
			if n := testing.AllocsPerRun(20, func() { d.ops.MatMulSparse(dst, x, w, kernels.MatMul{}) }); n > 1 {
				t.Errorf("%s m=%d: %.1f allocations a call on one thread", typ, m, n)
			}
		}
	}
}
