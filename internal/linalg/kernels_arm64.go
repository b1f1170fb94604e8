//go:build !noasm

package linalg

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/cpu"
)

// kernel is the best set of kernels that the processor has, less what the environment variable COMPRESS_CPU_DISABLE
// (see package kernels/cpu) switches off.
var kernel = chooseKernels(os.Getenv("COMPRESS_CPU_DISABLE"))

func chooseKernels(disabled string) kernelSet {
	if !cpu.ARM64.HasASIMD || slices.Contains(strings.Split(strings.ReplaceAll(disabled, " ", ""), ","), "neon") {
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
