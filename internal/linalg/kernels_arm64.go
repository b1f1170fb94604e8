//go:build !noasm

package linalg

import "github.com/modelcompress/compress/internal/isa"

// kernel is the best set of kernels that this process may use.
var kernel = chooseKernels(isa.Usable(isa.Disabled()))

func chooseKernels(s isa.Sets) kernelSet {
	if !s.NEON {
		return portable
	}
	return kernelSet{
		name: "neon", rows: 4, cols: 12, tile: tileNEON, dot: dotWide, axpy: axpyWide, rotate: rotateWide,
		turn: turnWide,
	}
}

func dotVectors(x, y *float64, n int) float64             { return dotNEON(x, y, n) }
func axpyVectors(y, x *float64, n int, alpha float64)     { axpyNEON(y, x, n, alpha) }
func turnVectors(dst, src *float64, k, stride, pitch int) { turnNEON(dst, src, k, stride, pitch) }
func rotateVectors(x, y *float64, n int, c, s float64)    { rotateNEON(x, y, n, c, s) }
