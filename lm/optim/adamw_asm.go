//go:build (amd64 || arm64) && !noasm

package optim

import "unsafe"

// run makes the step for one stretch, with the same operations in the same order as portable.
func (k adamStep) run(p, m, v, g []float32) {
	n := 0
	if haveVectors {
		n = len(p) &^ 7
	}

	if n > 0 {
		k.p, k.m, k.v, k.g = unsafe.SliceData(p), unsafe.SliceData(m), unsafe.SliceData(v), unsafe.SliceData(g)
		k.n = n
		adamVectors(&k)
	}

	k.portable(p[n:], m[n:], v[n:], g[n:])
}
