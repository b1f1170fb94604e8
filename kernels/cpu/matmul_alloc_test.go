//go:build !race

package cpu

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// TestMatMulAllocations bounds the garbage of a product: what starting threads costs, nothing that grows with
// the shapes. (The race detector empties pools at random, so it is left out there.)
func TestMatMulAllocations(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, shape := range [][3]int{{1, 300, 200}, {40, 300, 200}} {
		for _, kind := range []orientation{nt, nn} {
			c := newCase(rng, kind, kernels.BF16, shape[0], shape[1], shape[2], 0)
			dst := newMat(kernels.F32, c.m, c.n, 0)
			d := deviceWith(detect(""), 1)
			runtime.GC()
			if n := testing.AllocsPerRun(20, func() { c.run(d, dst) }); n > 1 {
				t.Errorf("%v: %.1f allocations a call on one thread", c, n)
			}
		}
	}
}
