package linalg

import "unsafe"

// kernelSet is one implementation of the innermost loops.
type kernelSet struct {
	name       string
	rows, cols int             // of a tile
	tile       func(*tileArgs) // c[i][j] += Σ_p a[p][i]·b[p][j]
	dot        func(x, y []float64) float64
	axpy       func(y []float64, alpha float64, x []float64) // y += alpha·x
	rotate     func(x, y []float64, c, s float64)            // x, y = c·x + s·y, c·y - s·x

	// turn writes dst[q·pitch+i] = src[i·stride+q] for 4 rows i and k columns q.
	turn func(dst []float64, pitch int, src []float64, stride, k int)
}

// maxTile bounds the elements of a tile.
const maxTile = 8 * 24

// tileArgs are the operands of a tile kernel: a packed [k][rows], b packed [k][cols], c with ldc bytes between
// rows. The assembly knows the offsets. k must be positive.
type tileArgs struct {
	a, b, c unsafe.Pointer
	k, ldc  int
}

// portable is the set in plain Go.
var portable = kernelSet{
	name: "portable", rows: 4, cols: 4, tile: tilePortable, dot: dotPortable, axpy: axpyPortable,
	rotate: rotatePortable, turn: turnPortable,
}

func tilePortable(t *tileArgs) {
	a, b := unsafe.Slice((*float64)(t.a), t.k*4), unsafe.Slice((*float64)(t.b), t.k*4)
	for i := 0; i < 4; i += 2 {
		var c [8]float64
		for p := 0; p+4 <= len(a); p += 4 {
			x := a[p+i]
			y := a[p+i+1]
			v := (*[4]float64)(b[p:])
			c[0] += x * v[0]
			c[1] += x * v[1]
			c[2] += x * v[2]

			c[3] += x * v[3]
			c[4] += y * v[0]
			c[5] += y * v[1]
			c[6] += y * v[2]
			c[7] += y * v[3]
		}

		for r := range 2 {
			row := unsafe.Slice((*float64)(unsafe.Add(t.c, (i+r)*t.ldc)), 4)
			for j := range row {
				row[j] += c[r*4+j]
			}
		}
	}
}

// dotPortable keeps four sums, so that additions need not wait for each other.
func dotPortable(x, y []float64) float64 {
	y = y[:len(x)]
	var s0, s1, s2, s3 float64
	i := 0
	for ; i+4 <= len(x); i += 4 {
		s0 += x[i] * y[i]
		s1 += x[i+1] * y[i+1]
		s2 += x[i+2] * y[i+2]
		s3 += x[i+3] * y[i+3]
	}

	for ; i < len(x); i++ {
		s0 += x[i] * y[i]
	}

	return (s0 + s1) + (s2 + s3)
}

func axpyPortable(y []float64, alpha float64, x []float64) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += alpha * v
	}
}

func rotatePortable(x, y []float64, c, s float64) {
	y = y[:len(x)]
	for i, a := range x {
		b := y[i]
		x[i], y[i] = c*a+s*b, c*b-s*a
	}
}

func turnPortable(dst []float64, pitch int, src []float64, stride, k int) {
	r0 := src[:k]
	r1 := src[stride:][:k]
	r2 := src[2*stride:][:k]
	r3 := src[3*stride:][:k]
	for q := range k {
		d := (*[4]float64)(dst[q*pitch:])
		d[0] = r0[q]
		d[1] = r1[q]
		d[2] = r2[q]
		d[3] = r3[q]
	}
}
