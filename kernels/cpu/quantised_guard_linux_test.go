package cpu

import (
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// TestQuantisedReadsNothingPastTheEnd runs products and expansions on operands that end where memory ends.
func TestQuantisedReadsNothingPastTheEnd(t *testing.T) {
	var fences [3]fence
	for i := range fences {
		fences[i] = newFence(t, 1<<18)
	}

	rng := rand.New(rand.NewPCG(1, 2))
	var devices []*Device
	for _, disable := range append(byteLevels, "dotprod", "avx2,neon") {
		t.Setenv("COMPRESS_CPU_DISABLE", disable)
		devices = append(devices, New(Options{Threads: 1}))
	}

	for i, k := range []int{1, 7, 31, 32, 33, 64, 96, 100, 128, 160, 256, 544, 576} {
		for _, f := range kernels.QuantFormats() {
			cols := quantisedColumns(f, k)
			for _, n := range []int{1, 3, 4, 16, 17, 37} {
				if (i+n)%3 == 0 {
					continue
				}

				at := 0
				w := randomQuantised(rng, f, n, cols, func(typ kernels.DType, size int) *kernels.Buffer {
					at++
					return fences[at-1].mat(t, typ, 1, size).Buf
				})

				for _, m := range []int{1, 2, 7, 13, 25, 71} {
					x := fences[2].mat(t, kernels.F32, m, cols)
					for j := range m {
						clear(x.RowF32(j))
					}

					dst := newMat(kernels.F32, m, n, 0)
					for _, d := range devices {
						d.ops.MatMulQuantised(dst, x, w, kernels.MatMul{Precision: kernels.Precision(m % 2)})
					}
				}

				for _, d := range devices {
					d.ops.ExpandQuantised(fences[2].mat(t, kernels.F32, n, cols), w)
				}
			}
		}
	}
}
