//go:build (amd64 || arm64) && !noasm

package linalg

import "unsafe"

func dotWide(x, y []float64) float64 {
	y = y[:len(x)]
	n := len(x) &^ 15
	sum := 0.0
	if n > 0 {
		sum = dotVectors(unsafe.SliceData(x), unsafe.SliceData(y), n)
	}
	for i := n; i < len(x); i++ {
		sum += x[i] * y[i]
	}

	return sum
}

func axpyWide(y []float64, alpha float64, x []float64) {
	y = y[:len(x)]
	n := len(x) &^ 15
	if n > 0 {
		axpyVectors(unsafe.SliceData(y), unsafe.SliceData(x), n, alpha)
	}
	for i := n; i < len(x); i++ {
		y[i] += alpha * x[i]
	}
}

func rotateWide(x, y []float64, c, s float64) {
	y = y[:len(x)]
	n := len(x) &^ 7
	if n > 0 {
		rotateVectors(unsafe.SliceData(x), unsafe.SliceData(y), n, c, s)
	}
	rotatePortable(x[n:], y[n:], c, s)
}

func turnWide(dst []float64, pitch int, src []float64, stride, k int) {
	n := k &^ 3
	if n > 0 {
		turnVectors(unsafe.SliceData(dst), unsafe.SliceData(src), n, stride*8, pitch*8)
	}
	if n < k {
		turnPortable(dst[n*pitch:], pitch, src[n:], stride, k-n)
	}
}
