//go:build amd64 && !noasm

package linalg

import "github.com/modelcompress/compress/internal/isa"

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

// kernel is the best set of kernels that this process may use.
var kernel = chooseKernels(isa.Usable(isa.Disabled()))

func chooseKernels(s isa.Sets) kernelSet {
	if !s.AVX2 {
		return portable
	}

	k := kernelSet{
		name: "avx2", rows: 4, cols: 12, tile: tileAVX2, dot: dotWide, axpy: axpyWide, rotate: rotateWide,
		turn: turnWide,
	}
	if s.AVX512 {
		k.name = "avx512"
		k.rows = 8
		k.cols = 24
		k.tile = tileAVX512
	}

	return k
}

func dotVectors(x, y *float64, n int) float64             { return dotAVX2(x, y, n) }
func axpyVectors(y, x *float64, n int, alpha float64)     { axpyAVX2(y, x, n, alpha) }
func turnVectors(dst, src *float64, k, stride, pitch int) { turnAVX2(dst, src, k, stride, pitch) }
func rotateVectors(x, y *float64, n int, c, s float64)    { rotateAVX2(x, y, n, c, s) }
