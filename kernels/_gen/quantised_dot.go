package main

import "fmt"

// Offsets in cpu.roundArgs.
const (
	roundSrc    = 0
	roundCodes  = 8
	roundLanes  = 16
	roundScales = 24
	roundSums   = 32
	roundScale  = 40
	roundBlocks = 48
	roundOffset = 56
	roundPeak   = 60
)

// roundFloor is 2^-100 as float32 bits: what is below is rounded to 0, because its scale has no inverse.
const roundFloor = 27 << 23

// writeRound writes the kernels that round activations to bytes. Those for few rows also write what the kernels for
// single rows add up in every lane.
func writeRound(f *file, few bool) {
	name := map[bool]string{true: "roundFewAVX2", false: "roundManyAVX2"}[few]
	f.doc(`func %s(r *roundArgs)

Rounds r.blocks blocks of 32 floats; see roundArgs.`, name)
	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ r+0(FP), DI")
	f.op("MOVQ %d(DI), SI", roundSrc)
	f.op("MOVQ %d(DI), R8", roundCodes)
	f.op("MOVQ %d(DI), R9", roundLanes)
	f.op("MOVQ %d(DI), R10", roundScales)
	f.op("MOVQ %d(DI), R11", roundSums)
	f.op("MOVQ %d(DI), R12", roundScale)
	f.op("MOVQ %d(DI), CX", roundBlocks)
	f.op("MOVL %d(DI), DX", roundPeak)
	splat(f, "Y15", 0x7fffffff7fffffff)
	splat(f, "Y14", 0x42fe000042fe0000) // 127
	splat(f, "Y13", every(1))
	splat(f, "Y12", 0x0001000100010001)
	f.op("VPBROADCASTD %d(DI), Y11", roundOffset)
	f.op("MOVQ $0x0703060205010400, AX")
	f.op("VMOVQ AX, X10")
	f.op("VPMOVZXBD X10, Y10")

	f.label("block")
	for i := range 4 {
		f.op("VMOVUPS %d(SI), Y%d", 32*i, i)
	}
	f.op("MOVL DX, AX")
	f.op("TESTL DX, DX")
	f.op("JNZ known")
	for i := range 4 {
		f.op("VPAND Y15, Y%d, Y%d", i, 4+i)
	}
	f.op("VPMAXUD Y5, Y4, Y4")
	f.op("VPMAXUD Y7, Y6, Y6")
	f.op("VPMAXUD Y6, Y4, Y4")
	topLane(f)

	f.label("known")
	f.op("VPXOR X6, X6, X6")
	f.op("VPXOR X7, X7, X7")
	f.op("CMPL AX, $0x%08x", roundFloor)
	f.op("JCS scaled")
	f.op("VMOVD AX, X5")
	f.op("VDIVSS X14, X5, X6")
	f.op("VDIVSS X5, X14, X7")

	f.label("scaled")
	f.op("VBROADCASTSS X7, Y7")
	for i := range 4 {
		f.op("VMULPS Y7, Y%d, Y%d", i, i)
		f.op("VCVTPS2DQ Y%d, Y%d", i, i)
	}
	f.op("VPACKSSDW Y1, Y0, Y0")
	f.op("VPACKSSDW Y3, Y2, Y2")
	f.op("VPACKSSWB Y2, Y0, Y0")
	f.op("VPERMD Y0, Y10, Y0")
	f.op("VMOVDQU Y0, (R8)")
	f.op("VPMADDUBSW Y0, Y13, Y1")
	f.op("VPMADDWD Y12, Y1, Y1")
	f.op("VPHADDD Y1, Y1, Y2")
	f.op("VPHADDD Y2, Y2, Y2")
	f.op("VMOVD X2, (R11)")
	f.op("VEXTRACTI128 $1, Y2, X2")
	f.op("VMOVD X2, 4(R11)")
	f.op("VMOVSS X6, (R12)")
	if few {
		f.op("VPMULLD Y11, Y1, Y1")
		f.op("VMOVDQU Y1, (R9)")
		f.op("VBROADCASTSS X6, Y6")
		f.op("VMOVUPS Y6, (R10)")
		f.op("ADDQ $32, R9")
		f.op("ADDQ $32, R10")
	}
	f.op("ADDQ $128, SI")
	f.op("ADDQ $32, R8")
	f.op("ADDQ $8, R11")
	f.op("ADDQ $4, R12")
	f.op("DECQ CX")
	f.op("JNZ block")
	f.op("VZEROUPPER")
	f.op("RET")
}

// topLane leaves the largest of the eight numbers in Y4 in AX.
func topLane(f *file) {
	f.op("VEXTRACTI128 $1, Y4, X5")
	f.op("VPMAXUD X5, X4, X4")
	f.op("VPSHUFD $0x4e, X4, X5")
	f.op("VPMAXUD X5, X4, X4")
	f.op("VPSHUFD $0xb1, X4, X5")
	f.op("VPMAXUD X5, X4, X4")
	f.op("VMOVD X4, AX")
}

// writeTop writes the kernel that finds the largest magnitude of a row.
func writeTop(f *file) {
	f.doc(`func peakOfRowAVX2(p *float32, n int) uint32

The bits of the largest |p[i]| of n elements, a multiple of 32 greater than 0.`)
	f.raw("TEXT ·peakOfRowAVX2(SB), NOSPLIT, $0-20")
	f.op("MOVQ p+0(FP), SI")
	f.op("MOVQ n+8(FP), CX")
	splat(f, "Y15", 0x7fffffff7fffffff)
	f.op("VPXOR Y4, Y4, Y4")
	f.op("VPXOR Y6, Y6, Y6")
	f.label("loop")
	for i := range 4 {
		f.op("VPAND %d(SI), Y15, Y%d", 32*i, i)
		f.op("VPMAXUD Y%d, Y%d, Y%d", i, 4+i%2*2, 4+i%2*2)
	}
	f.op("ADDQ $128, SI")
	f.op("SUBQ $32, CX")
	f.op("JNZ loop")
	f.op("VPMAXUD Y6, Y4, Y4")
	topLane(f)
	f.op("MOVL AX, ret+16(FP)")
	f.op("VZEROUPPER")
	f.op("RET")
}

// Offsets in cpu.rowArgs.
const (
	rowW         = 0
	rowStride    = 8
	rowRows      = 16
	rowSteps     = 24
	rowTail      = 32
	rowCodes     = 40
	rowLanes     = 48
	rowScales    = 56
	rowScale     = 64
	rowSums      = 72
	rowOut       = 80
	rowMul       = 88
	rowMulStride = 96
	rowPerGroup  = 104
)

// Registers of the kernels for single rows. BX is the weight, R8 the codes of x, R9 what every lane starts with, R10
// the scale of every lane, R11 scales and R12 sums of groups of x, R13 the results.
const (
	rowLow     = 31 // 0x0f
	rowXor     = 30 // 0x80
	rowShift   = 29 // 0 for the lower half, 4 for the upper
	rowZero    = 28
	rowBit     = 27 // 0x10, or 0x30
	rowPair    = 26 // 0 eight times and 1 eight times
	rowFirst   = 16 // sums: two, and one for half steps
	rowMin     = 19 // sums of summands
	rowHalfMin = 23 // the same for half steps
	rowSpread  = 20 // which scales the lanes of parts 0 to 3 have
)

// rowFormat is a format whose rows are multiplied by VNNI as they lie in memory: a step takes 64 elements, or a whole
// superblock.
type rowFormat struct {
	name  string
	bytes int // of a step
	super bool
	half  int // bytes of half a step, for rows that end with one; 0: none do
	setup func(f *file)
	body  func(f *file, half bool)
}

var rowFormats = []rowFormat{
	{"Q8_0", 68, false, 34, rowSetup(rowXor, 0x80), func(f *file, half bool) {
		loadTwice(f, 2, 34, half)
		f.op("VPXORQ %s, %s, %s", reg(rowXor, half), reg(0, half), reg(0, half))
		multiplyHalves(f, 34, half)
	}},
	{"Q4_0", 36, false, 18, rowSetup(rowLow, 0x0f), func(f *file, half bool) {
		nibblesTwice(f, 2, 18, half)
		multiplyHalves(f, 18, half)
	}},
	{"Q4_1", 40, false, 20, rowSetup(rowLow, 0x0f), func(f *file, half bool) {
		nibblesTwice(f, 4, 20, half)
		multiplyHalves(f, 20, half)
		addMinima(f, 20, half)
	}},
	{"Q5_0", 44, false, 22, rowSetup(rowLow, 0x0f), func(f *file, half bool) {
		nibblesTwice(f, 6, 22, half)
		fifthsTwice(f, 2, 22, half)
		multiplyHalves(f, 22, half)
	}},
	{"Q5_1", 48, false, 24, rowSetup(rowLow, 0x0f), func(f *file, half bool) {
		nibblesTwice(f, 8, 24, half)
		fifthsTwice(f, 4, 24, half)
		multiplyHalves(f, 24, half)
		addMinima(f, 24, half)
	}},
	{"Q4_K", 144, true, 0, rowSetup(rowLow, 0x0f), func(f *file, _ bool) {
		superMinima(f)
		for p := range 4 {
			f.op("VBROADCASTI64X4 %d(BX), Z5", 16+32*p)
			f.op("VPSRLVD Z%d, Z5, Z5", rowShift)
			f.op("VPANDD Z%d, Z5, Z5", rowLow)
			multiplyPart(f, p, true)
		}
	}},
	{"Q5_K", 176, true, 0, func(f *file) {
		rowSetup(rowLow, 0x0f)(f)
		rowSetup(rowBit, 0x10)(f)
		// the bit of a part's two groups in every byte of its halves
		for p := range 4 {
			splat(f, fmt.Sprintf("Y%d", 8+p), every(1<<(2*p)))
			splat(f, "Y7", every(2<<(2*p)))
			f.op("VINSERTI64X4 $1, Y7, Z%d, Z%d", 8+p, 8+p)
		}
	}, func(f *file, _ bool) {
		superMinima(f)
		f.op("VBROADCASTI64X4 16(BX), Z12")
		for p := range 4 {
			f.op("VBROADCASTI64X4 %d(BX), Z5", 48+32*p)
			f.op("VPSRLVD Z%d, Z5, Z5", rowShift)
			f.op("VPANDD Z%d, Z5, Z5", rowLow)
			f.op("VPTESTMB Z%d, Z12, K2", 8+p)
			f.op("VPADDB Z%d, Z5, K2, Z5", rowBit)
			multiplyPart(f, p, true)
		}
	}},
	{"Q6_K", 210, true, 0, func(f *file) {
		rowSetup(rowLow, 0x0f)(f)
		rowSetup(rowBit, 0x30)(f)
		// how the dwords of the high bits are turned: by 4 and 2 for the first 64 elements, by 0 and -2 for the others
		for h, turns := range [][2]uint64{{4, 2}, {0, 30}} {
			splat(f, fmt.Sprintf("Y%d", 8+h), turns[0]<<32|turns[0])
			splat(f, "Y7", turns[1]<<32|turns[1])
			f.op("VINSERTI64X4 $1, Y7, Z%d, Z%d", 8+h, 8+h)
		}
		splat(f, "Y7", 0x0706050403020100)
		f.op("VPMOVZXBD X7, Y7")
		f.op("VPMOVZXDQ Y7, Z7")
		f.op("VPSLLQ $32, Z7, Z10")
		f.op("VPORQ Z10, Z7, Z10") // 0 0 1 1 … 7 7
	}, func(f *file, _ bool) {
		f.op("VPMOVSXBD 192(BX), Z1")
		f.op("VCVTDQ2PS Z1, Z1")
		f.op("VPBROADCASTW 208(BX), Y2")
		f.op("VCVTPH2PS Y2, Z2")
		f.op("VMULPS Z2, Z1, Z1")
		f.op("VMOVUPS (R11), Y3")
		f.op("VPERMPS Z3, Z10, Z3")
		f.op("VMULPS Z3, Z1, Z1")
		for p := range 2 {
			f.op("VBROADCASTI64X4 %d(BX), Z4", 128+32*p)
			f.op("VMOVDQU64 %d(BX), Z11", 64*p)
			for h := range 2 {
				if h == 0 {
					f.op("VMOVDQA64 Z11, Z5")
				} else {
					f.op("VPSRLW $4, Z11, Z5")
				}
				f.op("VPROLVD Z%d, Z4, Z6", 8+h)
				f.op("VPANDD Z%d, Z6, Z6", rowBit)
				f.op("VPTERNLOGD $0xea, Z6, Z%d, Z5", rowLow) // (codes & 15) | high
				multiplyPart(f, 2*p+h, false)
			}
		}
	}},
}

// rowSetup fills a register with a byte.
func rowSetup(reg int, b byte) func(f *file) {
	return func(f *file) { splatZ(f, reg, every(b)) }
}

// splatZ fills any register with eight bytes.
func splatZ(f *file, reg int, v uint64) {
	f.op("MOVQ $0x%016x, AX", v)
	f.op("VPBROADCASTQ AX, Z%d", reg)
}

// reg names a register, for half a step its lower half.
func reg(n int, half bool) string {
	if half {
		return fmt.Sprintf("Y%d", n)
	}
	return fmt.Sprintf("Z%d", n)
}

// loadTwice loads the bytes at an offset of two blocks to the halves of register 0.
func loadTwice(f *file, at, block int, half bool) {
	f.op("VMOVDQU %d(BX), Y0", at)
	if !half {
		f.op("VINSERTI64X4 $1, %d(BX), Z0, Z0", at+block)
	}
}

// nibblesTwice loads 16 bytes of each of two blocks: their low nibbles and then their high ones.
func nibblesTwice(f *file, at, block int, half bool) {
	f.op("VMOVDQU %d(BX), X0", at)
	if !half {
		f.op("VINSERTI128 $1, %d(BX), Y0, Y0", at+block)
	}
	f.op("VPERMQ %s, %s, %s", reg(0, half), reg(25, half), reg(0, half))
	f.op("VPSRLVD %s, %s, %s", reg(24, half), reg(0, half), reg(0, half))
	f.op("VPANDD %s, %s, %s", reg(rowLow, half), reg(0, half), reg(0, half))
}

// fifthsTwice adds 16 where the bits of two blocks are set.
func fifthsTwice(f *file, at, block int, half bool) {
	f.op("MOVL %d(BX), AX", at)
	if half {
		f.op("KMOVD AX, K2")
	} else {
		f.op("MOVL %d(BX), R14", at+block)
		f.op("SHLQ $32, R14")
		f.op("ORQ R14, AX")
		f.op("KMOVQ AX, K2")
	}
	f.op("VPADDB %s, %s, K2, %s", reg(rowBit, half), reg(0, half), reg(0, half))
}

// multiplyHalves adds the products of two blocks, whose scales come first in them.
func multiplyHalves(f *file, block int, half bool) {
	f.op("VMOVDQU64 (R9), %s", reg(1, half))
	f.op("VPDPBUSD (R8), %s, %s", reg(0, half), reg(1, half))
	f.op("VCVTDQ2PS %s, %s", reg(1, half), reg(1, half))
	numbersTwice(f, 0, block, half)
	f.op("VMULPS (R10), %s, %s", reg(2, half), reg(2, half))
	sum := rowFirst
	if half {
		sum = rowFirst + 2
	}
	f.op("VFMADD231PS %s, %s, %s", reg(2, half), reg(1, half), reg(sum, half))
}

// numbersTwice leaves the float16 at an offset of two blocks in the halves of register 2.
func numbersTwice(f *file, at, block int, half bool) {
	if half {
		f.op("VPBROADCASTW %d(BX), X2", at)
		f.op("VCVTPH2PS X2, Y2")
		return
	}
	f.op("VPBROADCASTW %d(BX), Y2", at)
	f.op("VPBROADCASTW %d(BX), K1, Y2", at+block)
	f.op("VCVTPH2PS Y2, Z2")
}

// addMinima adds the blocks' summands times the sums of x.
func addMinima(f *file, block int, half bool) {
	numbersTwice(f, 2, block, half)
	sum := rowMin
	if half {
		sum = rowHalfMin
	}
	f.op("VFMADD231PS (R12), %s, %s", reg(2, half), reg(sum, half))
}

// superMinima leaves the eight scales of a block of Q4_K or Q5_K times those of x in Y1, and adds its minima.
func superMinima(f *file) {
	sixBits(f, "BX")
	f.op("VPMOVZXBD X0, Y1")
	f.op("VPSRLDQ $8, X0, X0")
	f.op("VPMOVZXBD X0, Y2")
	f.op("VCVTDQ2PS Y1, Y1")
	f.op("VCVTDQ2PS Y2, Y2")
	f.op("VPBROADCASTW (BX), X3")
	f.op("VCVTPH2PS X3, Y3")
	f.op("VPBROADCASTW 2(BX), X4")
	f.op("VCVTPH2PS X4, Y4")
	f.op("VMULPS Y3, Y1, Y1")
	f.op("VMULPS (R11), Y1, Y1")
	f.op("VMULPS Y4, Y2, Y2")
	f.op("VFNMADD231PS (R12), Y2, Y%d", rowMin)
}

// multiplyPart adds the products of the 64 codes in Z5, part p of a superblock whose scales are in Z1.
func multiplyPart(f *file, p int, zero bool) {
	if zero {
		f.op("VPXORQ Z6, Z6, Z6")
	} else {
		f.op("VMOVDQU64 %d(R9), Z6", 64*p)
	}
	f.op("VPDPBUSD %d(R8), Z5, Z6", 64*p)
	f.op("VCVTDQ2PS Z6, Z6")
	f.op("VPERMPS Z1, Z%d, Z7", rowSpread+p)
	f.op("VFMADD231PS Z7, Z6, Z%d", rowFirst+p%2)
}

// write emits the kernel of a format.
func (r rowFormat) write(f *file) {
	f.doc(`func row%sVNNI(r *rowArgs)

r.out[i] = Σ_p w[i][p]·x[p] for r.rows rows of w and one of x; see rowArgs.`, r.name)
	f.raw("TEXT ·row" + r.name + "VNNI(SB), NOSPLIT, $0-8")
	rowHead(f)
	r.setup(f)
	switch {
	case r.name == "Q6_K":
		rowSpreads(f, 4)
	case r.super:
		rowSpreads(f, 8)
		splatHalves(f, rowShift, 0, 0x0000000400000004)
	default:
		f.op("MOVL $0xff00, AX")
		f.op("KMOVW AX, K1")
		rowNibbles(f)
		if r.name[:2] == "Q5" {
			splatZ(f, rowBit, every(16))
		}
	}

	f.label("row")
	rowStart(f)
	if r.half > 0 {
		f.op("VMOVDQA64 Z%d, Z%d", rowZero, rowHalfMin)
	}
	f.op("MOVQ %d(DI), CX", rowSteps)
	f.op("TESTQ CX, CX")
	f.op("JZ tail")
	f.label("step")
	for at := 0; at < r.bytes; at += 64 {
		f.op("PREFETCHT1 %d(BX)", rowAhead+at)
	}
	r.body(f, false)
	n := 64
	if r.super {
		n = 256
	}
	f.op("ADDQ $%d, BX", r.bytes)
	f.op("ADDQ $%d, R8", n)
	f.op("ADDQ $%d, R9", n)
	f.op("ADDQ $%d, R10", n)
	f.op("ADDQ $%d, R11", n/8)
	if r.super {
		f.op("ADDQ $%d, R12", n/8)
	} else {
		f.op("ADDQ $%d, R12", n)
	}
	f.op("DECQ CX")
	f.op("JNZ step")
	f.label("tail")
	if r.half > 0 {
		f.op("CMPQ %d(DI), $0", rowTail)
		f.op("JEQ sum")
		r.body(f, true)
		f.label("sum")
		f.op("VADDPS Z%d, Z%d, Z%d", rowFirst+2, rowFirst+1, rowFirst+1)
		f.op("VADDPS Z%d, Z%d, Z%d", rowHalfMin, rowFirst+1, rowFirst+1)
	}
	rowEnd(f)
}

// rowAhead is how far ahead the weight is prefetched, into the second-level cache, which has room for more lines on
// their way than the first.
const rowAhead = 6144

// rowHead loads what stays the same for all rows.
func rowHead(f *file) {
	f.op("MOVQ r+0(FP), DI")
	f.op("MOVQ %d(DI), SI", rowW)
	f.op("MOVQ %d(DI), R13", rowOut)
	f.op("VPXORQ Z%d, Z%d, Z%d", rowZero, rowZero, rowZero)
}

// splatHalves fills the halves of a register.
func splatHalves(f *file, reg int, low, high uint64) {
	splatZ(f, reg, low)
	f.op("MOVQ $0x%016x, AX", high)
	f.op("VPBROADCASTQ AX, Z0")
	f.op("VINSERTI64X4 $1, Y0, Z%d, Z%d", reg, reg)
}

// rowSpreads fills the registers that say which scale the lanes of every part have, so many lanes each.
func rowSpreads(f *file, lanes int) {
	per := 16 / lanes
	for p := range 4 {
		for q := range 2 { // eight lanes each, as bytes
			v := uint64(0)
			for l := range 8 {
				v |= uint64(p*per+(8*q+l)/lanes) << (8 * l)
			}
			f.op("MOVQ $0x%016x, AX", v)
			f.op("VMOVQ AX, X%d", q)
		}
		f.op("VPUNPCKLQDQ X1, X0, X0")
		f.op("VPMOVZXBD X0, Z%d", rowSpread+p)
	}
}

// rowNibbles fills the registers by which nibbles of two blocks come into order: the qwords 0 1 0 1 2 3 2 3, and shifts
// by 0 and 4 bits for every other 16 bytes.
func rowNibbles(f *file) {
	f.op("MOVQ $0x0302030201000100, AX")
	f.op("VMOVQ AX, X0")
	f.op("VPMOVZXBQ X0, Z25")
	f.op("MOVQ $0x0404040400000000, AX")
	f.op("VMOVQ AX, X0")
	f.op("VPUNPCKLQDQ X0, X0, X0")
	f.op("VPMOVZXBD X0, Z24")
}

// rowStart begins a row.
func rowStart(f *file) {
	f.op("MOVQ SI, BX")
	for _, r := range []struct {
		at  int
		reg string
	}{{rowCodes, "R8"}, {rowLanes, "R9"}, {rowScales, "R10"}, {rowScale, "R11"}, {rowSums, "R12"}} {
		f.op("MOVQ %d(DI), %s", r.at, r.reg)
	}
	for _, z := range []int{rowFirst, rowFirst + 1, rowFirst + 2, rowMin} {
		f.op("VMOVDQA64 Z%d, Z%d", rowZero, z)
	}
}

// rowEnd adds the sums up and stores them.
func rowEnd(f *file) {
	f.op("VADDPS Z%d, Z%d, Z%d", rowFirst, rowFirst+1, rowFirst)
	f.op("VADDPS Z%d, Z%d, Z0", rowFirst, rowMin)
	f.op("VEXTRACTF64X4 $1, Z0, Y1")
	ymmEnd(f)
}

// writeRowGrouped writes the kernels for formats whose scales lie beside the codes: of 32 elements, or of a number of
// steps of 64.
func writeRowGrouped(f *file, format string, pairs bool) {
	name := format
	if pairs {
		name += "x32"
	}
	f.doc(`func row%sVNNI(r *rowArgs)

r.out[i] = Σ_p w[i][p]·x[p] for r.rows rows of w and one of x; see rowArgs.`, name)
	f.raw("TEXT ·row" + name + "VNNI(SB), NOSPLIT, $0-8")
	rowHead(f)
	rowSetup(rowLow, 0x0f)(f)
	rowSetup(rowXor, 0x80)(f)
	splatHalves(f, rowPair, 0, 0x0000000100000001)
	f.op("MOVQ %d(DI), DX", rowMul)
	f.label("row")
	rowStart(f)
	f.op("MOVQ %d(DI), CX", rowSteps)
	f.op("MOVQ DX, R11")
	if !pairs {
		f.label("group")
		f.op("MOVQ %d(DI), R14", rowPerGroup)
		f.op("CMPQ CX, R14")
		f.op("CMOVQLT CX, R14")
		f.op("SUBQ R14, CX")
		f.op("VMOVDQA64 Z%d, Z4", rowZero)
	}

	f.label("step")
	f.op("PREFETCHT1 %d(BX)", rowAhead)
	if format == "Int4" {
		f.op("VPMOVZXBW (BX), Z0")
		f.op("VPSLLW $4, Z0, Z1")
		f.op("VPTERNLOGD $0xa8, Z%d, Z1, Z0", rowLow) // (a | b) & 15
		f.op("ADDQ $32, BX")
	} else {
		f.op("VPXORQ (BX), Z%d, Z0", rowXor)
		f.op("ADDQ $64, BX")
	}
	f.op("VMOVDQU64 (R9), Z1")
	f.op("VPDPBUSD (R8), Z0, Z1")
	f.op("VCVTDQ2PS Z1, Z1")
	if pairs {
		f.op("VMOVSD (R11), X2")
		f.op("VPERMPS Z2, Z%d, Z2", rowPair)
		f.op("VMULPS (R10), Z2, Z2")
		f.op("VFMADD231PS Z2, Z1, Z%d", rowFirst)
		f.op("ADDQ $8, R11")
	} else {
		f.op("VFMADD231PS (R10), Z1, Z4")
	}
	f.op("ADDQ $64, R8")
	f.op("ADDQ $64, R9")
	f.op("ADDQ $64, R10")

	if pairs {
		f.op("DECQ CX")
		f.op("JNZ step")
	} else {
		f.op("DECQ R14")
		f.op("JNZ step")
		f.op("VBROADCASTSS (R11), Z2")
		f.op("VFMADD231PS Z2, Z4, Z%d", rowFirst)
		f.op("ADDQ $4, R11")
		f.op("TESTQ CX, CX")
		f.op("JNZ group")
	}
	f.op("ADDQ %d(DI), DX", rowMulStride)
	rowEnd(f)
}

// Offsets in cpu.byteTileArgs.
const (
	byteA      = 0
	byteOffset = 8
	byteScale  = 16
	byteSums   = 24
	byteB      = 32
	byteMul    = 40
	byteAdd    = 48
	byteC      = 56
	byteLdc    = 64
	byteGroups = 72
	bytePanels = 80
	byteAStep  = 88
	byteXStep  = 96
	byteAcc    = 104
	byteSteps  = 112
	byteInts   = 120
)

// byteRows is the rows of x of a tile; columns are 16.
const byteRows = 12

// writeByteTile writes a micro-kernel on bytes: sums of a group of elements are integers, which are scaled and added to
// float32 sums at its end. quads is how many times four elements a step has.
func writeByteTile(f *file, name string, quads int, affine bool) {
	f.doc(`func %s(t *byteTileArgs)

c[i][j] (+)= Σ_g x[i][g]·mul[g][j]·(Σ_p a[p][i]·b[p][j])%s for %d rows and 16 columns, for each of t.panels panels; see
byteTileArgs.`, name, map[bool]string{true: " + sums[i][g]·add[g][j]"}[affine], byteRows)
	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ t+0(FP), DI")
	f.op("MOVQ %d(DI), R12", byteC)
	f.op("MOVQ %d(DI), SI", byteLdc)
	f.op("MOVQ %d(DI), AX", byteA)
	f.label("panel")
	for i := range byteRows {
		f.op("VPXORQ Z%d, Z%d, Z%d", i, i, i)
	}
	f.op("MOVQ AX, R13")
	tilePointers(f)

	f.label("group")
	for i := range byteRows {
		f.op("VPBROADCASTD %d(CX), Z%d", 4*i, byteRows+i)
	}
	f.op("MOVQ %d(DI), R14", byteSteps)
	f.label("step")
	for q := range quads {
		f.op("VMOVDQU64 %d(BX), Z%d", 64*q, 24+q%2)
		for i := range byteRows {
			f.op("VPDPBUSD.BCST %d(R13), Z%d, Z%d", 4*(byteRows*q+i), 24+q%2, byteRows+i)
		}
	}
	f.op("ADDQ $%d, BX", 64*quads)
	f.op("ADDQ $%d, R13", 4*byteRows*quads)
	f.op("DECQ R14")
	f.op("JNZ step")

	f.op("VMOVUPS (R9), Z26")
	if affine {
		f.op("VMOVUPS (R10), Z27")
	}
	for i := range byteRows {
		f.op("VCVTDQ2PS Z%d, Z%d", byteRows+i, byteRows+i)
		f.op("VMULPS.BCST %d(DX), Z%d, Z%d", 4*i, byteRows+i, byteRows+i)
		f.op("VFMADD231PS Z26, Z%d, Z%d", byteRows+i, i)
		if affine {
			f.op("VFMADD231PS.BCST %d(R8), Z27, Z%d", 4*i, i)
		}
	}
	for _, r := range []string{"CX", "DX", "R8"} {
		f.op("ADDQ $%d, %s", 4*byteRows, r)
	}
	f.op("ADDQ $64, R9")
	f.op("ADDQ $64, R10")
	f.op("DECQ R11")
	f.op("JNZ group")

	f.op("CMPQ %d(DI), $0", byteAcc)
	f.op("JEQ store")
	f.op("MOVQ R12, BX")
	for i := range byteRows {
		f.op("VADDPS (BX), Z%d, Z%d", i, i)
		f.op("ADDQ SI, BX")
	}
	f.label("store")
	for i := range byteRows {
		f.op("VMOVUPS Z%d, (R12)", i)
		f.op("ADDQ SI, R12")
	}
	nextPanel(f)
}

// tilePointers loads what a tile begins a panel with, but for x.
func tilePointers(f *file) {
	for _, r := range []struct {
		at  int
		reg string
	}{
		{byteB, "BX"},
		{byteOffset, "CX"},
		{byteScale, "DX"},
		{byteSums, "R8"},
		{byteMul, "R9"},
		{byteAdd, "R10"},
		{byteGroups, "R11"},
	} {
		f.op("MOVQ %d(DI), %s", r.at, r.reg)
	}
}

// nextPanel ends a panel, and a tile after its last one.
func nextPanel(f *file) {
	anotherPanel(f)
	f.op("VZEROUPPER")
	f.op("RET")
}

// anotherPanel goes on with the next panel if there is one.
func anotherPanel(f *file) {
	f.op("ADDQ %d(DI), AX", byteAStep)
	f.op("MOVQ %d(DI), BX", byteXStep)
	for _, at := range []int{byteOffset, byteScale, byteSums} {
		f.op("ADDQ BX, %d(DI)", at)
	}
	f.op("DECQ %d(DI)", bytePanels)
	f.op("JNZ panel")
}

// writeQuantisedDot writes the kernels that multiply quantised weights by rounded activations.
func writeQuantisedDot(f *file) {
	sixTables(f)
	writeRound(f, true)
	writeRound(f, false)
	writeTop(f)
	for _, r := range rowFormats {
		r.write(f)
	}
	for _, format := range []string{"Int4", "Int8"} {
		writeRowGrouped(f, format, false)
		writeRowGrouped(f, format, true)
	}
	writeByteTile(f, "byteTile32VNNI", 8, false)
	writeByteTile(f, "byteTile32AddVNNI", 8, true)
	writeByteTile(f, "byteTile16VNNI", 4, false)
}
