package cpu

import (
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// TestMatMulReadsNothingPastTheEnd runs products on operands that end where memory ends.
func TestMatMulReadsNothingPastTheEnd(t *testing.T) {
	var fences [2]fence
	for i := range fences {
		fences[i] = newFence(t, 1<<18)
	}

	devices := allDevices(1)
	for _, k := range []int{1, 7, 8, 9, 16, 33, 96, 256, 300} {
		for _, typ := range weightTypes {
			for _, n := range []int{1, 4, 16, 19, 37, 64} {
				for _, m := range []int{1, 2, 3, 4, 5, 16, 17, 33} {
					operands := map[orientation][2][2]int{
						nt: {{m, k}, {n, k}},
						nn: {{m, k}, {k, n}},
						tn: {{k, m}, {k, n}},
					}
					for kind, shape := range operands {
						c := productCase{kind: kind, m: m, n: n, k: k}
						c.a = fences[0].mat(t, kernels.F32, shape[0][0], shape[0][1])
						c.b = fences[1].mat(t, typ, shape[1][0], shape[1][1])
						if kind == tn {
							c.b = fences[1].mat(t, kernels.F32, shape[1][0], shape[1][1])
						}
						dst := newMat(kernels.F32, m, n, 0)
						for _, d := range devices {
							c.run(d, dst)
						}
					}
				}
			}
		}
	}
}
