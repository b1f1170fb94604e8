//go:build !noasm

package cpu

import "unsafe"

// matmulKernels picks the best kernels that the instruction sets allow.
func matmulKernels(f features) kernelSet {
	if !f.NEON {
		return portableKernels
	}

	s := neonKernels
	if f.BF16 {
		s.fastBF16 = tileKernel{
			rows: 12, cols: 32, depth: 512, layout: panelPairs, aParts: 1, bParts: 1,
			run: gemmPairDot,
		}
		s.split = roundBF16Dot
		s.pairRows = pairRowsDot
		s.pairRounded = pairRoundedDot
	}
	if f.BFMMLA {
		s.fastBF16.layout = panelQuads
		s.fastBF16.run = gemmQuadsBFMMLA
		s.quads = zipQuads
	}
	return s
}

// zipQuads makes units of four bfloat16 of pairs, in a panel of 12 rows or 32.
func zipQuads(p *uint32, rows, units int) {
	if rows == 12 {
		zipQuads12NEON(p, units)
	} else {
		zipQuads32NEON(p, units)
	}
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
	if f.NEON {
		list = []peakKernel{{"neon", peakFMANEON, 24 * 4 * 2}}
	}
	if f.DotProd {
		list = append(list, peakKernel{DotProd, peakDot, 24 * 16 * 2})
	}
	if f.I8MM {
		list = append(list, peakKernel{I8MM, peakI8MM, 24 * 32 * 2})
	}
	return list
}

// readStream reads n bytes, a multiple of 1024 greater than 0.
func readStream(f features, p unsafe.Pointer, n int) uint64 {
	if f.NEON {
		return readStreamNEON((*byte)(p), n)
	}
	return readStreamPortable(unsafe.Slice((*uint64)(p), n/8))
}
