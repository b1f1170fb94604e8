//go:build !noasm

package cpu

import "unsafe"

// matmulKernels picks the best kernels that the instruction sets allow.
func matmulKernels(f features) kernelSet {
	switch {
	case f.AVX512:
		return avx512Kernels(f)
	case f.AVX2:
		return avx2Kernels
	}
	return portableKernels
}

func avx512Kernels(f features) kernelSet {
	s := kernelSet{
		exact: tileKernel{rows: 12, cols: 32, depth: 256, run: gemmF32AVX512},
		packA: pack12AVX512, packB: pack16AVX512, group: 16,
		widenBF16: widenBF16AVX512, widenF16: widenF16AVX512, lanes: 16, masked: true,
		dotF32:  []func(*dotArgs){dotF32AVX512x1, dotF32AVX512x2, dotF32AVX512x3, dotF32AVX512x4},
		dotBF16: []func(*dotArgs){dotBF16AVX512x1, dotBF16AVX512x2, dotBF16AVX512x3, dotBF16AVX512x4},
		dotF16:  []func(*dotArgs){dotF16AVX512x1, dotF16AVX512x2, dotF16AVX512x3, dotF16AVX512x4},
		axpyF32: axpyF32AVX512, axpyBF16: axpyBF16AVX512, axpyF16: axpyF16AVX512,
	}

	if f.AVX512BF16 {
		// Where it takes twice as long as a multiply-add, rounding the operands would gain nothing.
		if f.fastDot {
			s.fastBF16 = tileKernel{
				rows: 12, cols: 32, depth: 512, layout: panelPairs, aParts: 1, bParts: 1,
				run: gemmPairAVX512,
			}
			s.dotPair = []func(*dotArgs){dotPairAVX512x1, dotPairAVX512x2, dotPairAVX512x3, dotPairAVX512x4}
		}

		s.split = splitBF16AVX512
		s.pairRows = pairRowsAVX512
		s.pairParts = pairPartsAVX512
		s.pairRounded = pairRoundedAVX512
		s.peak16, s.peak32 = peak16AVX512, peak32AVX512
	}

	if f.AMX {
		// One product of rounded elements; three, of each part of a float32 with a BF16, are exact to float32; six
		// for two float32.
		s.fastBF16 = tileKernel{rows: 32, cols: 32, depth: 512, layout: panelTiles, aParts: 1, bParts: 1, run: gemmAMX1}
		s.exactBF16 = tileKernel{
			rows: 32, cols: 32, depth: 256, layout: panelTiles, aParts: 3, bParts: 1,
			run: gemmAMX3,
		}
		s.split32 = tileKernel{rows: 32, cols: 32, depth: 128, layout: panelTiles, aParts: 3, bParts: 3, run: gemmAMX6}
		s.direct = directAMX
	}

	return s
}

// directAMX returns the direct kernel for one or three parts of up to 32 rows of x.
func directAMX(parts, rows int) func(*directArgs) {
	switch {
	case parts == 1 && rows <= 16:
		return directAMX1x1
	case parts == 1:
		return directAMX1x2
	case rows <= 16:
		return directAMX3x1
	}
	return directAMX3x2
}

var avx2Kernels = kernelSet{
	exact: tileKernel{
		rows: 6, cols: 16, depth: 256, wide: true, flat: true, run: gemmF32AVX2, fetching: gemmF32FetchAVX2,
	},
	packA: pack6AVX2, packB: pack8AVX2, packBF16: pack8BF16AVX2, packF16: pack8F16AVX2, group: 8,
	columns:   columnKernels{columnsF32AVX2, columnsBF16AVX2, columnsF16AVX2},
	widenBF16: widenBF16AVX2, widenF16: widenF16AVX2, lanes: 8,
	dotF32:  []func(*dotArgs){dotF32AVX2x1, dotF32AVX2x2, dotF32AVX2x3},
	dotBF16: []func(*dotArgs){dotBF16AVX2x1, dotBF16AVX2x2, dotBF16AVX2x3},
	dotF16:  []func(*dotArgs){dotF16AVX2x1, dotF16AVX2x2, dotF16AVX2x3},
	axpyF32: axpyF32AVX2, axpyBF16: axpyBF16AVX2, axpyF16: axpyF16AVX2,
	few: &fewKernels{f32: fewF32AVX2, bf16: fewBF16AVX2, f16: fewF16AVX2, addLanes: addLanesAVX2},
}

// gemmF32AVX512 multiplies 12×32 tiles; see portableTile for the loop.
//
//go:noescape
func gemmF32AVX512(t *tileArgs)

// gemmF32AVX2 multiplies 6×16 tiles; see portableTile for the loop.
//
//go:noescape
func gemmF32AVX2(t *tileArgs)

// gemmF32FetchAVX2 is gemmF32AVX2 that fetches what tileArgs says.
//
//go:noescape
func gemmF32FetchAVX2(t *tileArgs)

// gemmPairAVX512 multiplies 12×32 tiles of bfloat16 pairs with VDPBF16PS.
//
//go:noescape
func gemmPairAVX512(t *tileArgs)

// gemmAMX1 multiplies 32×32 tiles of bfloat16.
//
//go:noescape
func gemmAMX1(t *tileArgs)

// gemmAMX3 multiplies 32×32 tiles: a in three bfloat16 parts, b in one.
//
//go:noescape
func gemmAMX3(t *tileArgs)

// gemmAMX6 multiplies 32×32 tiles: a and b in three bfloat16 parts, six of the nine products.
//
//go:noescape
func gemmAMX6(t *tileArgs)

// The direct kernels multiply bfloat16 weights as they lie in memory with packed rows of one or three parts;
// see directArgs.

//go:noescape
func directAMX1x1(d *directArgs)

//go:noescape
func directAMX1x2(d *directArgs)

//go:noescape
func directAMX3x1(d *directArgs)

//go:noescape
func directAMX3x2(d *directArgs)

// pack16AVX512 transposes 16 rows of 32-bit units; see packArgs.
//
//go:noescape
func pack16AVX512(p *packArgs)

// pack12AVX512 transposes 12 rows of 32-bit units; see packArgs.
//
//go:noescape
func pack12AVX512(p *packArgs)

// pack8AVX2 transposes 8 rows of 32-bit units; see packArgs.
//
//go:noescape
func pack8AVX2(p *packArgs)

// pack8BF16AVX2 transposes 8 rows of bfloat16, widened to float32; see packArgs.
//
//go:noescape
func pack8BF16AVX2(p *packArgs)

// pack8F16AVX2 transposes 8 rows of float16, widened to float32; see packArgs.
//
//go:noescape
func pack8F16AVX2(p *packArgs)

// pack6AVX2 transposes 6 rows of 32-bit units; see packArgs.
//
//go:noescape
func pack6AVX2(p *packArgs)

// splitBF16AVX512 rounds or splits floats to bfloat16; see splitArgs.
//
//go:noescape
func splitBF16AVX512(s *splitArgs)

// pairRowsAVX512 pairs rows of bfloat16; see pairArgs.
//
//go:noescape
func pairRowsAVX512(p *pairArgs)

// pairPartsAVX512 splits rows of floats into three parts and pairs them; see pairArgs.
//
//go:noescape
func pairPartsAVX512(p *pairArgs)

// pairRoundedAVX512 rounds rows of floats to bfloat16 and pairs them; see pairArgs.
//
//go:noescape
func pairRoundedAVX512(p *pairArgs)

// peak16AVX512 returns the largest p[i]&0x7fff of n elements, a multiple of 32 greater than 0.
//
//go:noescape
func peak16AVX512(p *uint16, n int) uint16

// peak32AVX512 returns the bits of the largest |p[i]| of n elements, a multiple of 16 greater than 0.
//
//go:noescape
func peak32AVX512(p *float32, n int) uint32

// The widening kernels compute dst[i] = src[i] for n elements, a multiple of the register size greater than 0.

//go:noescape
func widenBF16AVX512(dst *float32, src *uint16, n int)

//go:noescape
func widenF16AVX512(dst *float32, src *uint16, n int)

//go:noescape
func widenBF16AVX2(dst *float32, src *uint16, n int)

//go:noescape
func widenF16AVX2(dst *float32, src *uint16, n int)

// The dot kernels multiply four rows of w with one to four rows of x; see dotArgs.

//go:noescape
func dotF32AVX512x1(d *dotArgs)

//go:noescape
func dotF32AVX512x2(d *dotArgs)

//go:noescape
func dotF32AVX512x3(d *dotArgs)

//go:noescape
func dotF32AVX512x4(d *dotArgs)

//go:noescape
func dotF32AVX2x1(d *dotArgs)

//go:noescape
func dotF32AVX2x2(d *dotArgs)

//go:noescape
func dotF32AVX2x3(d *dotArgs)

//go:noescape
func dotBF16AVX512x1(d *dotArgs)

//go:noescape
func dotBF16AVX512x2(d *dotArgs)

//go:noescape
func dotBF16AVX512x3(d *dotArgs)

//go:noescape
func dotBF16AVX512x4(d *dotArgs)

//go:noescape
func dotBF16AVX2x1(d *dotArgs)

//go:noescape
func dotBF16AVX2x2(d *dotArgs)

//go:noescape
func dotBF16AVX2x3(d *dotArgs)

//go:noescape
func dotF16AVX512x1(d *dotArgs)

//go:noescape
func dotF16AVX512x2(d *dotArgs)

//go:noescape
func dotF16AVX512x3(d *dotArgs)

//go:noescape
func dotF16AVX512x4(d *dotArgs)

//go:noescape
func dotF16AVX2x1(d *dotArgs)

//go:noescape
func dotF16AVX2x2(d *dotArgs)

//go:noescape
func dotF16AVX2x3(d *dotArgs)

//go:noescape
func dotPairAVX512x1(d *dotArgs)

//go:noescape
func dotPairAVX512x2(d *dotArgs)

//go:noescape
func dotPairAVX512x3(d *dotArgs)

//go:noescape
func dotPairAVX512x4(d *dotArgs)

// The axpy kernels add four scaled rows of w to a row of sums; see axpyArgs.

//go:noescape
func axpyF32AVX512(a *axpyArgs)

//go:noescape
func axpyBF16AVX512(a *axpyArgs)

//go:noescape
func axpyF16AVX512(a *axpyArgs)

//go:noescape
func axpyF32AVX2(a *axpyArgs)

//go:noescape
func axpyBF16AVX2(a *axpyArgs)

//go:noescape
func axpyF16AVX2(a *axpyArgs)

// The few kernels multiply rows of w with 3 to 16 rows of x, a block of the inner size; see fewArgs.

//go:noescape
func fewF32AVX2(f *fewArgs)

//go:noescape
func fewBF16AVX2(f *fewArgs)

//go:noescape
func fewF16AVX2(f *fewArgs)

// addLanesAVX2 adds up the lanes of sums; see laneArgs.
//
//go:noescape
func addLanesAVX2(l *laneArgs)

// The columns kernels pack panels of 16 columns, widened to float32; see columnArgs.

//go:noescape
func columnsF32AVX2(c *columnArgs)

//go:noescape
func columnsBF16AVX2(c *columnArgs)

//go:noescape
func columnsF16AVX2(c *columnArgs)

// peakFMAAVX512 runs n rounds of 24 independent multiply-adds of 16 lanes.
//
//go:noescape
func peakFMAAVX512(n int)

// peakFMAAVX2 runs n rounds of 12 independent multiply-adds of 8 lanes.
//
//go:noescape
func peakFMAAVX2(n int)

// readStreamAVX2 reads n bytes, a multiple of 1024 greater than 0, and returns a value that depends on them.
//
//go:noescape
func readStreamAVX2(p *byte, n int) uint64

// peakVNNIAVX512 runs n rounds of 24 independent sums of 64 products of bytes.
//
//go:noescape
func peakVNNIAVX512(n int)

// peakAVXVNNI runs n rounds of 12 independent sums of 32 products of bytes.
//
//go:noescape
func peakAVXVNNI(n int)

// peakAMX runs n rounds of 4 independent products of bfloat16 tiles, 16 by 32 by 16.
//
//go:noescape
func peakAMX(n int)

//go:noescape
func peakAMXInt8(n int)

// peakKernels returns the kernels that only multiply and add, those on float32 first, each set after those that
// it contains.
func peakKernels(f features) (list []peakKernel) {
	if f.AVX2 {
		list = append(list, peakKernel{"avx2", peakFMAAVX2, 12 * 8 * 2})
	}
	if f.AVX512 {
		list = append(list, peakKernel{"avx512", peakFMAAVX512, 24 * 16 * 2})
	}
	if len(list) == 0 {
		list = append(list, portablePeak)
	}
	if f.AVXVNNI {
		list = append(list, peakKernel{AVXVNNI, peakAVXVNNI, 12 * 32 * 2})
	}
	if f.AVX512VNNI {
		list = append(list, peakKernel{VNNI, peakVNNIAVX512, 24 * 64 * 2})
	}
	if f.AMXInt8 {
		list = append(list, peakKernel{AMXInt8, peakAMXInt8, 4 * 16 * 64 * 16 * 2})
	}
	if f.AMX {
		list = append(list, peakKernel{AMX, peakAMX, 4 * 16 * 32 * 16 * 2})
	}

	return list
}

// readStream reads n bytes, a multiple of 1024 greater than 0.
func readStream(f features, p unsafe.Pointer, n int) uint64 {
	if f.AVX2 {
		return readStreamAVX2((*byte)(p), n)
	}
	return readStreamPortable(unsafe.Slice((*uint64)(p), n/8))
}
