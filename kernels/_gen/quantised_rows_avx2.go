package main

import (
	"fmt"
	"strings"
)

// The kernels for single rows with AVX2 add what those with VNNI add, in the same order: where VNNI has the sums of two
// groups of 32 elements in the halves of a register, a register each. Products of bytes are VPMADDUBSW, whose sums of
// two stay within 16 bits: 63·127·2 for the widest codes that are taken as unsigned. Those of 8 bits are multiplied as
// magnitudes, with the signs moved to x: 128·127·2.
//
// With AVX-VNNI the same kernels have VPDPBUSD, which adds four products to a sum of 32 bits without rounding or
// saturating anything: codes of 8 bits are multiplied with 128 added, as with AVX-512, and what that is too much is in
// what sums begin with.

// Registers of the kernels for single rows with AVX2; those for pointers are as with VNNI. Scales are spread over lanes
// by shuffles: what is stored for a broadcast to load waits longer than all the rest takes.
const (
	ymmLow   = 15 // 0x0f; for codes of 8 bits 0x80
	ymmOnes  = 14 // 16-bit ones
	ymmDot   = 14 // sums of products with AVX-VNNI, which needs no ones
	ymmBit   = 13 // 0x10, or 0x30
	ymmShift = 12 // 0 for the lower half, 4 for the upper; for Q6_K and pairs the scales of the lanes
	ymmSum   = 8  // sums: four registers
	ymmMin   = 7  // sums of summands of superblocks
	ymmHalf  = 6  // sums of half steps
	ymmSpots = 5  // which byte of four has the bit of every element
	ymmBits  = 4  // that bit
	ymmScale = 3  // in both halves what the sums of four blocks are multiplied by

	// Of superblocks, the same of the first and of the last four groups, with two scales each one in either half.
	ymmScales = 5
)

// ymmISA is an instruction set with registers of 256 bits.
type ymmISA struct {
	name string
	vnni bool // it has VPDPBUSD
}

var (
	ymmAVX2 = ymmISA{"AVX2", false}
	ymmVNNI = ymmISA{"AVXVNNI", true}
)

// ymmFormat is a format whose rows are multiplied by AVX2 as they lie in memory, in the steps of rowFormat.
type ymmFormat struct {
	name   string
	bytes  int // of a step
	super  bool
	affine bool                  // blocks have summands; of a superblock they are no part of this
	codes  func(f *file, at int) // leaves 32 codes in Y0; nil for those of 8 bits

	// groups takes the codes of a superblock apart, group by group: each gets the register that has those of one. Y1,
	// Y4 and constants are to stay as they are meanwhile.
	groups func(f *file, each func(reg, g int))
}

var ymmFormats = []ymmFormat{
	{name: "Q8_0", bytes: 68},
	{name: "Q4_0", bytes: 36, codes: func(f *file, at int) {
		ymmNibbles(f, at+2)
	}},
	{name: "Q4_1", bytes: 40, affine: true, codes: func(f *file, at int) {
		ymmNibbles(f, at+4)
	}},
	{name: "Q5_0", bytes: 44, codes: func(f *file, at int) {
		ymmNibbles(f, at+6)
		ymmFifths(f, at+2)
	}},
	{name: "Q5_1", bytes: 48, affine: true, codes: func(f *file, at int) {
		ymmNibbles(f, at+8)
		ymmFifths(f, at+4)
	}},
	{name: "Q4_K", bytes: 144, super: true, groups: func(f *file, each func(reg, g int)) {
		for p := range 4 {
			f.op("VMOVDQU %d(BX), Y0", 16+32*p)
			f.op("VPSRLW $4, Y0, Y1")
			for h := range 2 {
				f.op("VPAND Y%d, Y%d, Y%d", ymmLow, h, h)
				each(h, 2*p+h)
			}
		}
	}},
	{name: "Q5_K", bytes: 176, super: true, groups: func(f *file, each func(reg, g int)) {
		f.op("VMOVDQU 16(BX), Y4")
		for p := range 4 {
			f.op("VMOVDQU %d(BX), Y0", 48+32*p)
			f.op("VPSRLW $4, Y0, Y1")
			for h := range 2 {
				f.op("VPAND Y%d, Y%d, Y%d", ymmLow, h, h)
				shift(f, 4, 2, 4-(2*p+h))
				f.op("VPAND Y%d, Y2, Y2", ymmBit)
				f.op("VPOR Y2, Y%d, Y%d", h, h)
				each(h, 2*p+h)
			}
		}
	}},
	{name: "Q6_K", bytes: 210, super: true, groups: func(f *file, each func(reg, g int)) {
		for g := range 8 {
			if g%4 == 0 {
				f.op("VMOVDQU %d(BX), Y4", 128+8*g)
			}
			f.op("VMOVDQU %d(BX), Y0", 64*(g/4)+32*(g%2))
			if g%4 >= 2 {
				f.op("VPSRLW $4, Y0, Y0")
			}
			f.op("VPAND Y%d, Y0, Y0", ymmLow)
			shift(f, 4, 2, 4-2*(g%4))
			f.op("VPAND Y%d, Y2, Y2", ymmBit)
			f.op("VPOR Y2, Y0, Y0")
			each(0, g)
		}
	}},
}

// block adds the products of a superblock.
func (l ymmFormat) block(f *file, i ymmISA) {
	if l.name != "Q6_K" {
		ymmSuper(f)
		l.groups(f, func(reg, g int) { i.part(f, reg, g, false) })
		return
	}

	f.op("MOVWLZX 208(BX), AX")
	f.op("VMOVD AX, X2")
	f.op("VCVTPH2PS X2, X2")
	f.op("VBROADCASTSS X2, Y2")
	for h := range 2 {
		f.op("VPMOVSXBD %d(BX), Y0", 192+8*h)
		f.op("VCVTDQ2PS Y0, Y0")
		f.op("VMULPS Y2, Y0, Y0")
		f.op("VPERMPS Y0, Y%d, Y0", ymmShift)
		f.op("VBROADCASTF128 %d(R11), Y1", 16*h)
		f.op("VMULPS Y1, Y0, Y%d", ymmScales+h)
	}
	l.groups(f, func(reg, g int) { i.part(f, reg, g, true) })
}

// ymmNibbles leaves the low nibbles of 16 bytes and then the high ones in Y0.
func ymmNibbles(f *file, at int) {
	f.op("VBROADCASTI128 %d(BX), Y0", at)
	f.op("VPSRLVD Y%d, Y0, Y0", ymmShift)
	f.op("VPAND Y%d, Y0, Y0", ymmLow)
}

// ymmFifths adds 16 to the codes in Y0 whose bit is set.
func ymmFifths(f *file, at int) {
	f.op("VPBROADCASTD %d(BX), Y1", at)
	f.op("VPSHUFB Y%d, Y1, Y1", ymmSpots)
	f.op("VPAND Y%d, Y1, Y1", ymmBits)
	f.op("VPCMPEQB Y%d, Y1, Y1", ymmBits)
	f.op("VPAND Y%d, Y1, Y1", ymmBit)
	f.op("VPOR Y1, Y0, Y0")
}

// products makes of 32 unsigned codes the sums of every four products with group g of a step of x, added to what they
// begin with or to 0, and returns the register that has them.
func (i ymmISA) products(f *file, reg, g int, begun bool) int {
	if !i.vnni {
		f.op("VPMADDUBSW %d(R8), Y%d, Y%d", 32*g, reg, reg)
		f.op("VPMADDWD Y%d, Y%d, Y%d", ymmOnes, reg, reg)
		if begun {
			f.op("VPADDD %d(R9), Y%d, Y%d", 32*g, reg, reg)
		}
		return reg
	}

	if begun {
		f.op("VMOVDQU %d(R9), Y%d", 32*g, ymmDot)
	} else {
		f.op("VPXOR Y%d, Y%d, Y%d", ymmDot, ymmDot, ymmDot)
	}
	f.bytes(vpdpbusdFrom(ymmDot, reg, rR8, 32*g), "VPDPBUSD %d(R8), Y%d, Y%d", 32*g, reg, ymmDot)
	return ymmDot
}

// signed is products for the 32 signed codes at an offset. It uses Y0 and Y1.
func (i ymmISA) signed(f *file, at, g int) int {
	if i.vnni {
		f.op("VPXOR %d(BX), Y%d, Y0", at, ymmLow)
		return i.products(f, 0, g, true)
	}

	f.op("VMOVDQU %d(BX), Y0", at)
	f.op("VMOVDQU %d(R8), Y1", 32*g)
	f.op("VPSIGNB Y0, Y1, Y1")
	f.op("VPABSB Y0, Y0")
	f.op("VPMADDUBSW Y1, Y0, Y0")
	f.op("VPMADDWD Y%d, Y0, Y0", ymmOnes)
	return 0
}

// part adds the products of group g of a superblock.
func (i ymmISA) part(f *file, reg, g int, begun bool) {
	sum := i.products(f, reg, g, begun)
	f.op("VPERMILPS $0x%02x, Y%d, Y3", 0x55*(g%4), ymmScales+g/4)
	f.op("VCVTDQ2PS Y%d, Y%d", sum, reg)
	f.op("VFMADD231PS Y3, Y%d, Y%d", reg, ymmSum+g%4)
}

// ymmSuper leaves the eight scales of a block of Q4_K or Q5_K times those of x in two registers, and adds its minima.
func ymmSuper(f *file) {
	sixBits(f, "BX")
	f.op("VMOVD (BX), X4")
	f.op("VCVTPH2PS X4, X4")
	f.op("VBROADCASTSS X4, Y3")
	f.op("VMOVSHDUP X4, X4")
	f.op("VBROADCASTSS X4, Y4")
	f.op("VPMOVZXBD X0, Y1")
	f.op("VPSRLDQ $8, X0, X0")
	f.op("VPMOVZXBD X0, Y2")
	f.op("VCVTDQ2PS Y1, Y1")
	f.op("VCVTDQ2PS Y2, Y2")
	f.op("VMULPS Y3, Y1, Y1")
	f.op("VMULPS (R11), Y1, Y1")
	for h := range 2 {
		f.op("VPERM2F128 $0x%02x, Y1, Y1, Y%d", 0x11*h, ymmScales+h)
	}
	f.op("VMULPS Y4, Y2, Y2")
	f.op("VFNMADD231PS (R12), Y2, Y%d", ymmMin)
}

// blocks adds the products of four or two blocks of 32 elements, or of one for half a step.
func (l ymmFormat) blocks(f *file, i ymmISA, count int) {
	half := count == 1
	l.scales(f, count)
	for b := range count {
		sum := ymmSum + b%2
		if half {
			sum = ymmHalf
		}

		products := 0
		if l.name == "Q8_0" {
			products = i.signed(f, b*l.bytes/2+2, b)
		} else {
			l.codes(f, b*l.bytes/2)
			products = i.products(f, 0, b, true)
		}
		f.op("VCVTDQ2PS Y%d, Y0", products)
		f.op("VPERMILPS $0x%02x, Y%d, Y2", 0x55*b, ymmScale)
		f.op("VFMADD231PS Y2, Y0, Y%d", sum)
	}
}

// scales leaves what the sums of some blocks are multiplied by in both halves of a register: their scales times those
// of x. They are converted together. A word that is wanted in place b is loaded 2·b bytes early, with others that are
// not. With summands, these are added.
func (l ymmFormat) scales(f *file, count int) {
	if l.affine {
		l.pairs(f, count)
		return
	}

	size := l.bytes / 2
	f.op("VMOVD (BX), X2")
	for b := 1; b < count; b++ {
		f.op("VPBLENDW $%d, %d(BX), X2, X2", 1<<b, b*(size-2))
	}
	f.op("VCVTPH2PS X2, X2")
	if count == 4 {
		f.op("VMULPS (R11), X2, X2")
	} else {
		f.op("VMOVSD (R11), X3")
		f.op("VMULPS X3, X2, X2")
	}
	f.op("VINSERTF128 $1, X2, Y2, Y%d", ymmScale)
}

// pairs is scales for blocks with a scale and a summand each.
func (l ymmFormat) pairs(f *file, count int) {
	size := l.bytes / 2
	f.op("VMOVD (BX), X2")
	if count > 1 {
		f.op("VPINSRD $1, %d(BX), X2, X2", size)
	}
	f.op("VCVTPH2PS X2, X2")
	switch count {
	case 1:
		f.op("VMULSS (R11), X2, X3")
		f.op("VBROADCASTSS X3, Y%d", ymmScale)
		f.op("VMOVSHDUP X2, X1")
		f.op("VFMADD231SS (R12), X1, X%d", ymmMin)
		return
	case 2:
		f.op("VMOVSD (R11), X1")
		f.op("VSHUFPS $0x08, X2, X2, X3")
		f.op("VMULPS X1, X3, X3")
		f.op("VSHUFPS $0x0d, X2, X2, X2")
	case 4:
		f.op("VMOVD %d(BX), X1", 2*size)
		f.op("VPINSRD $1, %d(BX), X1, X1", 3*size)
		f.op("VCVTPH2PS X1, X1")
		f.op("VSHUFPS $0x88, X1, X2, X3")
		f.op("VMULPS (R11), X3, X3")
		f.op("VSHUFPS $0xdd, X1, X2, X2")
	}
	f.op("VINSERTF128 $1, X3, Y3, Y%d", ymmScale)

	for b := range count {
		m := 2
		switch b {
		case 1, 3:
			m = 1
			f.op("VMOVSHDUP X2, X1")
		case 2:
			f.op("VPSHUFD $0xee, X2, X2")
		}
		f.op("VFMADD231SS %d(R12), X%d, X%d", 32*b, m, ymmSum+2+b%2)
	}
}

// write emits the kernel of a format.
func (l ymmFormat) write(f *file, i ymmISA) {
	i.head(f, l.name)
	switch {
	case l.name == "Q6_K":
		splat(f, fmt.Sprintf("Y%d", ymmBit), every(0x30))
		ymmPairs(f)
	case l.name == "Q5_K":
		splat(f, fmt.Sprintf("Y%d", ymmBit), every(0x10))
	case !l.super:
		l.constants(f)
	}

	f.label("row")
	ymmStart(f)
	f.op("MOVQ %d(DI), CX", rowSteps)
	if l.super {
		f.label("step")
		l.step(f, i, 1)
		f.op("DECQ CX")
		f.op("JNZ step")
	} else {
		f.op("SUBQ $2, CX")
		f.op("JCS rest")
		f.label("step")
		l.step(f, i, 2)
		f.op("SUBQ $2, CX")
		f.op("JCC step")
		f.label("rest")
		f.op("TESTQ $1, CX")
		f.op("JZ tail")
		l.step(f, i, 1)
	}
	f.label("tail")

	// Y0 are the sums of even groups, Y1 those of odd ones, as in the halves of a register of VNNI's kernels.
	s := ymmSum
	if l.super {
		f.op("VADDPS Y%d, Y%d, Y0", s+2, s)
		f.op("VADDPS Y%d, Y%d, Y1", s+3, s+1)
		f.op("VADDPS Y%d, Y0, Y0", ymmMin)
		ymmEnd(f)
		return
	}

	f.op("CMPQ %d(DI), $0", rowTail)
	f.op("JEQ sum")
	l.blocks(f, i, 1)
	f.label("sum")
	if l.affine {
		f.op("VADDPS Y%d, Y%d, Y%d", ymmMin, ymmHalf, ymmHalf)
	}
	f.op("VADDPS Y%d, Y%d, Y0", ymmHalf, s)
	f.op("VMOVAPS Y%d, Y1", s+1)
	if l.affine {
		f.op("VADDPS Y%d, Y0, Y0", s+2)
		f.op("VADDPS Y%d, Y1, Y1", s+3)
	}
	ymmEnd(f)
}

// constants loads what taking blocks of 32 codes apart needs.
func (l ymmFormat) constants(f *file) {
	if l.name == "Q8_0" {
		return
	}
	splat(f, fmt.Sprintf("Y%d", ymmLow), every(15))
	f.op("MOVQ $0x0404040400000000, AX")
	f.op("VMOVQ AX, X0")
	f.op("VPMOVZXBD X0, Y%d", ymmShift)
	if l.name != "Q5_0" && l.name != "Q5_1" {
		return
	}

	splat(f, fmt.Sprintf("Y%d", ymmBit), every(16))
	splat(f, fmt.Sprintf("Y%d", ymmBits), 0x8040201008040201)
	for q := range 4 {
		f.op("MOVQ $0x%016x, AX", every(byte(q)))
		f.op("VMOVQ AX, X%d", q)
	}
	f.op("VPUNPCKLQDQ X1, X0, X0")
	f.op("VPUNPCKLQDQ X3, X2, X2")
	f.op("VINSERTI128 $1, X2, Y0, Y%d", ymmSpots)
}

// step emits some steps, and moves on.
func (l ymmFormat) step(f *file, i ymmISA, count int) {
	for at := 0; at < count*l.bytes; at += 64 {
		f.op("PREFETCHT0 %d(BX)", rowAhead+at)
	}
	n := 64 * count
	if l.super {
		n = 256
		l.block(f, i)
	} else {
		l.blocks(f, i, 2*count)
	}

	f.op("ADDQ $%d, BX", count*l.bytes)
	f.op("ADDQ $%d, R8", n)
	f.op("ADDQ $%d, R11", n/8)
	if (l.name != "Q8_0" || i.vnni) && l.name != "Q4_K" && l.name != "Q5_K" {
		f.op("ADDQ $%d, R9", n)
	}
	if l.affine {
		f.op("ADDQ $%d, R12", n)
	}
	if l.super {
		f.op("ADDQ $%d, R12", n/8)
	}
}

// head begins a kernel and loads what stays the same for all rows.
func (i ymmISA) head(f *file, name string) {
	f.doc(`func row%s%s(r *rowArgs)

r.out[i] = Σ_p w[i][p]·x[p] for r.rows rows of w and one of x; see rowArgs.`, name, i.name)
	f.raw(fmt.Sprintf("TEXT ·row%s%s(SB), NOSPLIT, $0-8", name, i.name))
	f.op("MOVQ r+0(FP), DI")
	f.op("MOVQ %d(DI), SI", rowW)
	f.op("MOVQ %d(DI), R13", rowOut)
	low := every(15)
	if i.vnni && strings.Contains(name, "8") {
		low = every(0x80)
	}
	splat(f, fmt.Sprintf("Y%d", ymmLow), low)
	if !i.vnni {
		splat(f, fmt.Sprintf("Y%d", ymmOnes), 0x0001000100010001)
	}
}

// ymmPairs fills the register that takes even scales to the lower half of a register and odd ones to the upper.
func ymmPairs(f *file) {
	f.op("MOVQ $0x0705030106040200, AX")
	f.op("VMOVQ AX, X0")
	f.op("VPMOVZXBD X0, Y%d", ymmShift)
}

// ymmStart begins a row.
func ymmStart(f *file) {
	f.op("MOVQ SI, BX")
	for _, r := range []struct {
		at  int
		reg string
	}{{rowCodes, "R8"}, {rowLanes, "R9"}, {rowScales, "R10"}, {rowScale, "R11"}, {rowSums, "R12"}} {
		f.op("MOVQ %d(DI), %s", r.at, r.reg)
	}
	for y := ymmHalf; y < ymmSum+4; y++ {
		f.op("VXORPS Y%d, Y%d, Y%d", y, y, y)
	}
}

// ymmEnd adds the lanes of Y0 and Y1 up and stores the sum.
func ymmEnd(f *file) {
	f.op("VADDPS Y1, Y0, Y0")
	f.op("VEXTRACTF128 $1, Y0, X1")
	f.op("VADDPS X1, X0, X0")
	f.op("VPSHUFD $0x4e, X0, X1")
	f.op("VADDPS X1, X0, X0")
	f.op("VPSHUFD $0xb1, X0, X1")
	f.op("VADDPS X1, X0, X0")
	f.op("VMOVSS X0, (R13)")
	f.op("ADDQ $4, R13")
	f.op("ADDQ %d(DI), SI", rowStride)
	f.op("DECQ %d(DI)", rowRows)
	f.op("JNZ row")
	f.op("VZEROUPPER")
	f.op("RET")
}

// writeLightGrouped writes the kernels for formats whose scales lie beside the codes: of 32 elements, or of a number of
// steps of 64.
func writeLightGrouped(f *file, i ymmISA, format string, pairs bool) {
	name := format
	if pairs {
		name += "x32"
	}
	i.head(f, name)
	f.op("MOVQ %d(DI), DX", rowMul)
	f.label("row")
	ymmStart(f)
	f.op("MOVQ %d(DI), CX", rowSteps)
	f.op("MOVQ DX, R11")
	if !pairs {
		f.label("group")
		f.op("MOVQ %d(DI), R14", rowPerGroup)
		f.op("CMPQ CX, R14")
		f.op("CMOVQLT CX, R14")
		f.op("SUBQ R14, CX")
		f.op("VXORPS Y4, Y4, Y4")
		f.op("VXORPS Y5, Y5, Y5")
	}

	f.label("step")
	f.op("PREFETCHT0 %d(BX)", rowAhead)
	for b := range 2 {
		products := 0
		if format == "Int4" {
			f.op("VPMOVZXBW %d(BX), Y0", 16*b)
			f.op("VPSLLW $4, Y0, Y1")
			f.op("VPOR Y1, Y0, Y0")
			f.op("VPAND Y%d, Y0, Y0", ymmLow)
			products = i.products(f, 0, b, true)
		} else {
			products = i.signed(f, 32*b, b)
		}
		f.op("VCVTDQ2PS Y%d, Y0", products)
		if pairs {
			f.op("VBROADCASTSS %d(R11), Y2", 4*b)
			f.op("VMULPS %d(R10), Y2, Y2", 32*b)
			f.op("VFMADD231PS Y2, Y0, Y%d", ymmSum+b)
		} else {
			f.op("VFMADD231PS %d(R10), Y0, Y%d", 32*b, 4+b)
		}
	}
	if format == "Int4" {
		f.op("ADDQ $32, BX")
	} else {
		f.op("ADDQ $64, BX")
	}
	if format == "Int4" || i.vnni {
		f.op("ADDQ $64, R9")
	}
	f.op("ADDQ $64, R8")
	f.op("ADDQ $64, R10")

	if pairs {
		f.op("ADDQ $8, R11")
		f.op("DECQ CX")
		f.op("JNZ step")
	} else {
		f.op("DECQ R14")
		f.op("JNZ step")
		f.op("VBROADCASTSS (R11), Y2")
		f.op("VFMADD231PS Y2, Y4, Y%d", ymmSum)
		f.op("VFMADD231PS Y2, Y5, Y%d", ymmSum+1)
		f.op("ADDQ $4, R11")
		f.op("TESTQ CX, CX")
		f.op("JNZ group")
	}
	f.op("ADDQ %d(DI), DX", rowMulStride)
	f.op("VMOVAPS Y%d, Y0", ymmSum)
	f.op("VMOVAPS Y%d, Y1", ymmSum+1)
	ymmEnd(f)
}

// writeQuantisedRows writes the kernels that multiply rows of quantised weights by rounded activations with AVX2.
func writeQuantisedRows(f *file) { ymmAVX2.rows(f) }

// writeQuantisedRowsVNNI writes the kernels for rounded activations with AVX-VNNI.
func writeQuantisedRowsVNNI(f *file) { ymmVNNI.rows(f) }

// rows writes the kernels for rounded activations.
func (i ymmISA) rows(f *file) {
	sixTables(f)
	for _, l := range ymmFormats {
		l.write(f, i)
	}
	for _, format := range []string{"Int4", "Int8"} {
		writeLightGrouped(f, i, format, false)
		writeLightGrouped(f, i, format, true)
	}
}
