//go:build amd64 && !noasm

package linalg

import (
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:noescape
func tileAVX512(t *tileArgs)

//go:noescape
func tileAVX2(t *tileArgs)

//go:noescape
func dotAVX2(x, y *float64, n int) float64

//go:noescape
func axpyAVX2(y, x *float64, n int, alpha float64)

//go:noescape
func turnAVX2(dst, src *float64, k, stride, pitch int)

//go:noescape
func rotateAVX2(x, y *float64, n int, c, s float64)

// kernel is the best set of kernels that the processor has, less what the environment variable COMPRESS_CPU_DISABLE
// (see package kernels/cpu) switches off.
var kernel = chooseKernels(os.Getenv("COMPRESS_CPU_DISABLE"))

func chooseKernels(disabled string) kernelSet {
	off := func(name string) bool {
		for d := range strings.SplitSeq(disabled, ",") {
			if strings.TrimSpace(d) == name {
				return true
			}
		}
		return false
	}

	if !cpu.X86.HasAVX2 || !cpu.X86.HasFMA || off("avx2") {
		return portable
	}

	k := kernelSet{
		name: "avx2", rows: 4, cols: 12, tile: tileAVX2, dot: dotWide, axpy: axpyWide, rotate: rotateWide,
		turn: turnWide,
	}
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && !off("avx512") {
		k.name = "avx512"
		k.rows = 8
		k.cols = 24
		k.tile = tileAVX512
	}

	return k
}

func dotWide(x, y []float64) float64 {
	y = y[:len(x)]
	n := len(x) &^ 15
	sum := 0.0
	if n > 0 {
		sum = dotAVX2(unsafe.SliceData(x), unsafe.SliceData(y), n)
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
		axpyAVX2(unsafe.SliceData(y), unsafe.SliceData(x), n, alpha)
	}
	for i := n; i < len(x); i++ {
		y[i] += alpha * x[i]
	}
}

func rotateWide(x, y []float64, c, s float64) {
	y = y[:len(x)]
	n := len(x) &^ 7
	if n > 0 {
		rotateAVX2(unsafe.SliceData(x), unsafe.SliceData(y), n, c, s)
	}
	rotatePortable(x[n:], y[n:], c, s)
}

func turnWide(dst []float64, pitch int, src []float64, stride, k int) {
	n := k &^ 3
	if n > 0 {
		turnAVX2(unsafe.SliceData(dst), unsafe.SliceData(src), n, stride*8, pitch*8)
	}
	if n < k {
		turnPortable(dst[n*pitch:], pitch, src[n:], stride, k-n)
	}
}
