//go:build !race

package cpu

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// TestQuantisedAllocations bounds the garbage of a product with a quantised weight, which is none that grows with the
// shapes. (The race detector empties pools at random, so it is left out there.)
func TestQuantisedAllocations(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range kernels.QuantFormats() {
		w := randomQuantised(rng, f, 300, 512, kernels.NewHost)
		for _, m := range []int{1, 4, 9, 40, 300} {
			x := randomMat(rng, kernels.F32, m, 512, 0)
			dst := newMat(kernels.F32, m, 300, 0)
			for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
				d := New(Options{Threads: 1})
				runtime.GC()
				n := testing.AllocsPerRun(20, func() { d.ops.MatMulQuantised(dst, x, w, kernels.MatMul{Precision: p}) })
				if n > 1 {
					t.Errorf("%s m=%d %s: %.1f allocations a call on one thread", f, m, p, n)
				}
			}
		}
	}
}
