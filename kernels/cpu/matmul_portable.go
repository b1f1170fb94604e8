package cpu

import "unsafe"

// portableKernels compute in Go.
var portableKernels = kernelSet{exact: tileKernel{rows: 4, cols: 4, depth: 256, run: portableTile}}

// portableTile is the micro-kernel in Go, and what the others compute:
// c[i][j] (+)= Σ_p a[p][i]·b[p][j] for 4 rows and 4 columns, for every panel of a.
func portableTile(t *tileArgs) {
	b := unsafe.Slice((*[4]float32)(t.b), t.k)
	for q := range t.panels {
		a := unsafe.Slice((*[4]float32)(unsafe.Add(t.a, q*t.aStep)), t.k)
		var sum [4][4]float32
		for p := range a {
			x, y := &a[p], &b[p]
			for i := range sum {
				s, v := &sum[i], x[i]
				s[0] += v * y[0]
				s[1] += v * y[1]
				s[2] += v * y[2]
				s[3] += v * y[3]
			}
		}

		for i := range sum {
			c := (*[4]float32)(unsafe.Add(t.c, (q*4+i)*t.ldc))
			for j := range c {
				if t.acc != 0 {
					sum[i][j] += c[j]
				}
				c[j] = sum[i][j]
			}
		}
	}
}
