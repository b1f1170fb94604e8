//go:build !noasm

package cpu

import "unsafe"

// matmulKernels picks the best kernels that the instruction sets allow.
func matmulKernels(f features) kernelSet {
	if !f.neon {
		return portableKernels
	}

	s := neonKernels
	if f.bf16 {
		s.fastBF16 = tileKernel{
			rows: 12, cols: 32, depth: 512, layout: panelPairs, aParts: 1, bParts: 1,
			run: gemmPairDot,
		}
		s.split = roundBF16Dot
		s.pairRows = pairRowsDot
		s.pairRounded = pairRoundedDot
	}
	return s
}

var neonKernels = kernelSet{
	exact: tileKernel{rows: 12, cols: 16, depth: 256, run: gemmF32NEON},
	packA: pack12NEON, packB: pack16NEON, group: 16,
	widenBF16: widenBF16NEON, widenF16: widenF16NEON, lanes: 8,
	dotF32:  []func(*dotArgs){dotF32NEONx1, dotF32NEONx2},
	dotBF16: []func(*dotArgs){dotBF16NEONx1, dotBF16NEONx2},
	dotF16:  []func(*dotArgs){dotF16NEONx1, dotF16NEONx2},
	axpyF32: axpyF32NEON, axpyBF16: axpyBF16NEON, axpyF16: axpyF16NEON,
}

// peakKernels returns the kernels that only multiply and add, that on float32 first.
func peakKernels(f features) []peakKernel {
	list := []peakKernel{portablePeak}
	if f.neon {
		list = []peakKernel{{"neon", peakFMANEON, 24 * 4 * 2}}
	}
	if f.dotprod {
		list = append(list, peakKernel{DotProd, peakDot, 24 * 16 * 2})
	}
	return list
}

// readStream reads n bytes, a multiple of 1024 greater than 0.
func readStream(f features, p unsafe.Pointer, n int) uint64 {
	if f.neon {
		return readStreamNEON((*byte)(p), n)
	}
	return readStreamPortable(unsafe.Slice((*uint64)(p), n/8))
}
