//go:build amd64 && !noasm

package optim

import (
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:noescape
func adamAVX2(k *adamStep)

// haveAVX2 may be switched off as in package kernels/cpu.
var haveAVX2 = cpu.X86.HasAVX2 && !strings.Contains(","+os.Getenv("COMPRESS_CPU_DISABLE")+",", ",avx2,")

// run makes the step for one stretch, with the same operations in the same order as portable.
func (k adamStep) run(p, m, v, g []float32) {
	n := 0
	if haveAVX2 {
		n = len(p) &^ 7
	}

	if n > 0 {
		k.p, k.m, k.v, k.g = unsafe.SliceData(p), unsafe.SliceData(m), unsafe.SliceData(v), unsafe.SliceData(g)
		k.n = n
		adamAVX2(&k)
	}

	k.portable(p[n:], m[n:], v[n:], g[n:])
}
