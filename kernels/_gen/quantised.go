package main

import "fmt"

// Offsets in cpu.unpackArgs.
const (
	unpackDst         = 0
	unpackMul         = 8
	unpackAdd         = 16
	unpackSrc         = 24
	unpackBlocks      = 32
	unpackRows        = 40
	unpackSrcStride   = 48
	unpackDstStride   = 56
	unpackScaleStride = 64
	unpackFlip        = 72
	unpackMinus       = 80
)

// Registers of the unpacking kernels: vectors of bytes that all blocks share.
const (
	unpackLow   = 15 // 0x0f
	unpackXor   = 14 // 0x80 if the codes are to be unsigned
	unpackSub   = 13 // what symmetric formats subtract
	unpackBit   = 12 // 0x10, or 0x30
	unpackSpots = 11 // which byte of four has the bit of every element
	unpackBits  = 10 // ones but for the bit of every element in that byte
	unpackSign  = 9  // the sign of floats
)

// unpackFormat is a format of blocks: elements in bytes, and what takes a block at BX apart into codes at R8, factors
// at R9 and summands at R13.
type unpackFormat struct {
	name            string
	elements, bytes int
	group           int  // elements that share a factor
	minus           bool // something may be subtracted from codes
	body            func(f *file, u unpackFormat)
}

var unpackFormats = []unpackFormat{
	{"Q8_0", 32, 34, 32, false, func(f *file, u unpackFormat) {
		f.op("VMOVDQU 2(BX), Y0")
		u.store(f, 0, 0)
		u.half(f, 0, "(R9)")
	}},
	{"Q4_0", 32, 18, 32, true, func(f *file, u unpackFormat) {
		u.nibbles(f, 2)
		u.store(f, 0, 0)
		u.half(f, 0, "(R9)")
	}},
	{"Q4_1", 32, 20, 32, false, func(f *file, u unpackFormat) {
		u.nibbles(f, 4)
		u.store(f, 0, 0)
		u.half(f, 0, "(R9)")
		u.half(f, 2, "(R13)")
	}},
	{"Q5_0", 32, 22, 32, true, func(f *file, u unpackFormat) {
		u.nibbles(f, 6)
		u.fifths(f, 2)
		u.store(f, 0, 0)
		u.half(f, 0, "(R9)")
	}},
	{"Q5_1", 32, 24, 32, false, func(f *file, u unpackFormat) {
		u.nibbles(f, 8)
		u.fifths(f, 4)
		u.store(f, 0, 0)
		u.half(f, 0, "(R9)")
		u.half(f, 2, "(R13)")
	}},
	{"Q4_K", 256, 144, 32, false, func(f *file, u unpackFormat) {
		u.superscales(f)
		for p := range 4 {
			u.halves(f, 16+32*p)
			u.store(f, 0, 64*p)
			u.store(f, 1, 64*p+32)
		}
	}},
	{"Q5_K", 256, 176, 32, false, func(f *file, u unpackFormat) {
		u.superscales(f)
		f.op("VMOVDQU 16(BX), Y4")
		for p := range 4 {
			u.halves(f, 48+32*p)
			for h := range 2 {
				shift(f, 4, 5, 4-(2*p+h))
				f.op("VPAND Y%d, Y5, Y5", unpackBit)
				f.op("VPOR Y5, Y%d, Y%d", h, h)
				u.store(f, h, 64*p+32*h)
			}
		}
	}},
	{"Q6_K", 256, 210, 16, true, func(f *file, u unpackFormat) {
		f.op("MOVWLZX 208(BX), AX")
		f.op("VMOVD AX, X2")
		f.op("VCVTPH2PS X2, X2")
		f.op("VBROADCASTSS X2, Y2")
		for h := range 2 {
			f.op("VPMOVSXBD %d(BX), Y3", 192+8*h)
			f.op("VCVTDQ2PS Y3, Y3")
			f.op("VMULPS Y2, Y3, Y3")
			f.op("VMOVUPS Y3, %d(R9)", 32*h)
		}

		for p := range 2 {
			f.op("VMOVDQU %d(BX), Y4", 128+32*p)
			for q := range 4 {
				f.op("VMOVDQU %d(BX), Y0", 64*p+32*(q%2))
				if q >= 2 {
					f.op("VPSRLW $4, Y0, Y0")
				}
				f.op("VPAND Y%d, Y0, Y0", unpackLow)
				shift(f, 4, 5, 4-2*q)
				f.op("VPAND Y%d, Y5, Y5", unpackBit)
				f.op("VPOR Y5, Y0, Y0")
				u.store(f, 0, 128*p+32*q)
			}
		}
	}},
	{"Int4", 32, 16, 0, true, func(f *file, u unpackFormat) {
		f.op("VPMOVZXBW (BX), Y0")
		f.op("VPSLLW $4, Y0, Y1")
		f.op("VPOR Y1, Y0, Y0")
		f.op("VPAND Y%d, Y0, Y0", unpackLow)
		u.store(f, 0, 0)
	}},
	{"Int8", 32, 32, 0, false, func(f *file, u unpackFormat) {
		f.op("VMOVDQU (BX), Y0")
		u.store(f, 0, 0)
	}},
}

// shift writes register from shifted left by n bits, or right if n is below 0, to register to. What crosses from byte to
// byte is for the caller to mask.
func shift(f *file, from, to, n int) {
	switch {
	case n > 0:
		f.op("VPSLLW $%d, Y%d, Y%d", n, from, to)
	case n < 0:
		f.op("VPSRLW $%d, Y%d, Y%d", -n, from, to)
	default:
		f.op("VMOVDQA Y%d, Y%d", from, to)
	}
}

// store writes 32 codes.
func (u unpackFormat) store(f *file, reg, at int) {
	if u.minus {
		f.op("VPSUBB Y%d, Y%d, Y%d", unpackSub, reg, reg)
	}
	f.op("VPXOR Y%d, Y%d, Y%d", unpackXor, reg, reg)
	f.op("VMOVDQU Y%d, %d(R8)", reg, at)
}

// half writes a number in float16 as float32.
func (u unpackFormat) half(f *file, at int, to string) {
	f.op("MOVWLZX %d(BX), AX", at)
	f.op("VMOVD AX, X1")
	f.op("VCVTPH2PS X1, X1")
	f.op("VMOVSS X1, %s", to)
}

// nibbles loads 16 bytes: the low nibbles and then the high ones.
func (u unpackFormat) nibbles(f *file, at int) {
	f.op("VMOVDQU %d(BX), X0", at)
	f.op("VPSRLW $4, X0, X1")
	f.op("VINSERTI128 $1, X1, Y0, Y0")
	f.op("VPAND Y%d, Y0, Y0", unpackLow)
}

// halves loads 32 bytes: the low nibbles in Y0, the high ones in Y1.
func (u unpackFormat) halves(f *file, at int) {
	f.op("VMOVDQU %d(BX), Y0", at)
	f.op("VPSRLW $4, Y0, Y1")
	f.op("VPAND Y%d, Y0, Y0", unpackLow)
	f.op("VPAND Y%d, Y1, Y1", unpackLow)
}

// fifths adds 16 where the bit of an element is set.
func (u unpackFormat) fifths(f *file, at int) {
	f.op("VPBROADCASTD %d(BX), Y2", at)
	f.op("VPSHUFB Y%d, Y2, Y2", unpackSpots)
	f.op("VPOR Y%d, Y2, Y2", unpackBits)
	f.op("VPCMPEQB Y3, Y3, Y3")
	f.op("VPCMPEQB Y3, Y2, Y2")
	f.op("VPAND Y%d, Y2, Y2", unpackBit)
	f.op("VPOR Y2, Y0, Y0")
}

// superscales writes the eight factors and summands of a block of Q4_K or Q5_K.
func (u unpackFormat) superscales(f *file) {
	sixBits(f, "BX")
	f.op("MOVWLZX (BX), AX")
	f.op("VMOVD AX, X2")
	f.op("MOVWLZX 2(BX), AX")
	f.op("VMOVD AX, X3")
	f.op("VCVTPH2PS X2, X2")
	f.op("VCVTPH2PS X3, X3")
	f.op("VBROADCASTSS X2, Y2")
	f.op("VBROADCASTSS X3, Y3")
	f.op("VXORPS Y%d, Y3, Y3", unpackSign)
	f.op("VPMOVZXBD X0, Y1")
	f.op("VPSRLDQ $8, X0, X0")
	f.op("VPMOVZXBD X0, Y0")
	f.op("VCVTDQ2PS Y1, Y1")
	f.op("VCVTDQ2PS Y0, Y0")
	f.op("VMULPS Y2, Y1, Y1")
	f.op("VMULPS Y3, Y0, Y0")
	f.op("VMOVUPS Y1, (R9)")
	f.op("VMOVUPS Y0, (R13)")
}

// sixBits leaves the eight scales and the eight minima of six bits each of the superblock at a base in X0, as bytes. The
// twelve bytes q that have them follow two halves: their words are the lower scales, the lower minima, and the lower
// bits of the upper ones of both, whose upper two bits are those of the first eight bytes. It uses X1; sixTables has the
// constants.
func sixBits(f *file, base string) {
	f.op("VPSHUFD $0xed, (%s), X0", base) // q0 q2 q1 q2
	f.op("VPSRLVD sixShifts<>(SB), X0, X0")
	f.op("VPAND sixLow<>(SB), X0, X0")
	f.op("VPSHUFD $0x84, (%s), X1", base) // - q0 - q1
	f.op("VPSRLD $2, X1, X1")
	f.op("VPAND sixHigh<>(SB), X1, X1")
	f.op("VPOR X1, X0, X0")
}

// sixTables writes the constants of sixBits.
func sixTables(f *file) {
	for _, c := range []struct {
		name  string
		words [4]uint32
	}{
		{"sixShifts", [4]uint32{0, 0, 0, 4}},
		{"sixLow", [4]uint32{0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f}},
		{"sixHigh", [4]uint32{0, 0x30303030, 0, 0x30303030}},
	} {
		for i, w := range c.words {
			f.raw(fmt.Sprintf("DATA %s<>+%d(SB)/4, $0x%08x", c.name, 4*i, w))
		}
		f.raw("GLOBL " + c.name + "<>(SB), RODATA|NOPTR, $16")
	}
}

// splat fills a register with eight bytes.
func splat(f *file, reg string, v uint64) {
	f.op("MOVQ $0x%016x, AX", v)
	f.op("VMOVQ AX, X%s", reg[1:])
	f.op("VPBROADCASTQ X%s, %s", reg[1:], reg)
}

// every is a byte eight times.
func every(b byte) uint64 { return uint64(b) * 0x0101010101010101 }

// unpackAhead is how far ahead a row is prefetched: what is taken apart at a time is multiplied before the next is, and
// should be on its way meanwhile.
const unpackAhead = 6144

func (u unpackFormat) write(f *file) {
	f.doc(`func unpack%sAVX2(u *unpackArgs)

Takes u.blocks blocks of %d elements apart in each of u.rows rows.`, u.name, u.elements)
	f.raw("TEXT ·unpack" + u.name + "AVX2(SB), NOSPLIT, $0-8")
	f.op("MOVQ u+0(FP), DI")
	f.op("MOVQ %d(DI), R10", unpackDst)
	f.op("MOVQ %d(DI), R11", unpackMul)
	f.op("MOVQ %d(DI), R12", unpackAdd)
	f.op("MOVQ %d(DI), SI", unpackSrc)

	splat(f, fmt.Sprintf("Y%d", unpackLow), every(15))
	f.op("VPBROADCASTQ %d(DI), Y%d", unpackFlip, unpackXor)
	if u.minus {
		f.op("VPBROADCASTQ %d(DI), Y%d", unpackMinus, unpackSub)
	}
	u.constants(f)

	f.label("row")
	f.op("MOVQ R10, R8")
	f.op("MOVQ R11, R9")
	f.op("MOVQ R12, R13")
	f.op("MOVQ SI, BX")
	f.op("MOVQ %d(DI), DX", unpackBlocks)
	f.label("block")
	for at := 0; at < u.bytes; at += 64 {
		f.op("PREFETCHT1 %d(BX)", unpackAhead+at)
	}
	u.body(f, u)
	f.op("ADDQ $%d, BX", u.bytes)
	f.op("ADDQ $%d, R8", u.elements)
	if u.group > 0 {
		f.op("ADDQ $%d, R9", u.elements/u.group*4)
		f.op("ADDQ $%d, R13", u.elements/u.group*4)
	}
	f.op("DECQ DX")
	f.op("JNZ block")

	f.op("ADDQ %d(DI), SI", unpackSrcStride)
	f.op("ADDQ %d(DI), R10", unpackDstStride)
	f.op("ADDQ %d(DI), R11", unpackScaleStride)
	f.op("ADDQ %d(DI), R12", unpackScaleStride)
	f.op("DECQ %d(DI)", unpackRows)
	f.op("JNZ row")
	f.op("VZEROUPPER")
	f.op("RET")
}

// constants loads what only some formats need.
func (u unpackFormat) constants(f *file) {
	switch u.name {
	case "Q5_0", "Q5_1":
		splat(f, fmt.Sprintf("Y%d", unpackBit), every(16))
		splat(f, fmt.Sprintf("Y%d", unpackBits), 0x7fbfdfeff7fbfdfe)
		for q, v := range []uint64{0, every(1), every(2), every(3)} { // bytes 0 and 1 for the first lane
			f.op("MOVQ $0x%016x, AX", v)
			f.op("VMOVQ AX, X%d", q)
		}
		f.op("VPUNPCKLQDQ X1, X0, X0")
		f.op("VPUNPCKLQDQ X3, X2, X2")
		f.op("VINSERTI128 $1, X2, Y0, Y%d", unpackSpots)
	case "Q4_K":
		splat(f, fmt.Sprintf("Y%d", unpackSign), 0x8000000080000000)
	case "Q5_K":
		splat(f, fmt.Sprintf("Y%d", unpackSign), 0x8000000080000000)
		splat(f, fmt.Sprintf("Y%d", unpackBit), every(16))
	case "Q6_K":
		splat(f, fmt.Sprintf("Y%d", unpackBit), every(0x30))
	}
}

// Offsets in cpu.spreadArgs.
const (
	spreadDst    = 0
	spreadCodes  = 8
	spreadMul    = 16
	spreadAdd    = 24
	spreadGroups = 32
)

// spreadKinds are how codes become floats: by factors of how many elements, and what is done with the summand.
var spreadKinds = []struct {
	name  string
	group int
	kind  string
}{{"Mul32", 32, "mul"}, {"Mul16", 16, "mul"}, {"Add32", 32, "add"}, {"Sub32", 32, "sub"}}

// writeSpread writes the kernels that make floats of codes.
func writeSpread(f *file, isa widenISA) {
	z := isa.reg
	for _, k := range spreadKinds {
		formula := map[string]string{
			"mul": "mul·q", "add": "mul·q + add", "sub": "mul·(q - add)",
		}[k.kind]
		f.doc(`func spread%s%s(s *spreadArgs)

dst = %s for s.groups groups of %d codes, rounded after every operation but for a product that is exact.`, k.name,
			isa.name, formula, k.group)
		f.raw("TEXT ·spread" + k.name + isa.name + "(SB), NOSPLIT, $0-8")
		f.op("MOVQ s+0(FP), DI")
		f.op("MOVQ %d(DI), R8", spreadDst)
		f.op("MOVQ %d(DI), SI", spreadCodes)
		f.op("MOVQ %d(DI), R9", spreadMul)
		f.op("MOVQ %d(DI), R10", spreadAdd)
		f.op("MOVQ %d(DI), CX", spreadGroups)
		f.label("group")
		f.op("VBROADCASTSS (R9), %s0", z)
		if k.kind != "mul" {
			f.op("VBROADCASTSS (R10), %s1", z)
		}

		n := k.group / isa.lanes
		for i := range n {
			r := 2 + 2*i
			f.op("VPMOVSXBD %d(SI), %s%d", i*isa.lanes, z, r)
			f.op("VCVTDQ2PS %s%d, %s%d", z, r, z, r)
			switch k.kind {
			case "mul":
				f.op("VMULPS %s0, %s%d, %s%d", z, z, r, z, r)
			case "add":
				f.op("VFMADD213PS %s1, %s0, %s%d", z, z, z, r)
			case "sub":
				f.op("VSUBPS %s1, %s%d, %s%d", z, z, r, z, r)
				f.op("VMULPS %s0, %s%d, %s%d", z, z, r, z, r)
			}
			f.op("VMOVUPS %s%d, %d(R8)", z, r, i*isa.lanes*4)
		}

		f.op("ADDQ $%d, R8", k.group*4)
		f.op("ADDQ $%d, SI", k.group)
		f.op("ADDQ $4, R9")
		f.op("ADDQ $4, R10")
		f.op("DECQ CX")
		f.op("JNZ group")
		f.op("VZEROUPPER")
		f.op("RET")
	}
}

// Offsets in cpu.codeArgs.
const (
	codeCodes       = 0
	codeMul         = 8
	codeAdd         = 16
	codeX           = 24
	codeXStride     = 32
	codeSums        = 40
	codeOut         = 48
	codeOutStride   = 56
	codeGroups      = 64
	codeRows        = 72
	codeStride      = 80
	codeScaleStride = 88
	codeGoesOn      = 96
	codeGoesOnLater = 104
)

// codeDot is a kernel that multiplies codes by rows of floats. Registers: BX codes, R9 and R10 factors and summands, R8,
// AX and R14 x and one and three of its strides, R11 the sums of a row.
type codeDot struct {
	isa   widenISA
	name  string
	kind  string
	group int // elements that share a factor
	rows  int // of x
}

// codeRowsMost is how many rows of x a kernel takes at most: the sums of more do not fit the registers of AVX2.
const codeRowsMost = 4

// Registers of codeDot: those of the sums are two a row of x, which take turns where something is added.
const (
	codeFactor  = 0
	codeSummand = 1
	codeWide    = 2
	codeInner   = 4 // the sum of a group's products, of each row of x
	codeSum     = 8
)

// writeCodeDot writes the kernels that multiply codes by floats.
func writeCodeDot(f *file, isa widenISA) {
	for _, k := range spreadKinds {
		for rows := 1; rows <= codeRowsMost; rows++ {
			codeDot{isa, k.name, k.kind, k.group, rows}.write(f)
		}
	}
}

func (d codeDot) write(f *file) {
	f.doc(`func dot%s%sx%d(c *codeArgs)

The sums of w·x for c.rows rows of codes and %d of x, over c.groups groups of %d elements, with the w that spread%s
makes; see codeArgs.`, d.name, d.isa.name, d.rows, d.rows, d.group, d.name)
	f.raw(fmt.Sprintf("TEXT ·dot%s%sx%d(SB), NOSPLIT, $0-8", d.name, d.isa.name, d.rows))
	f.op("MOVQ c+0(FP), DI")
	f.op("MOVQ %d(DI), SI", codeCodes)
	f.op("MOVQ %d(DI), R12", codeMul)
	f.op("MOVQ %d(DI), R13", codeAdd)
	f.op("MOVQ %d(DI), AX", codeXStride)
	f.op("LEAQ (AX)(AX*2), R14")
	f.op("MOVQ %d(DI), R11", codeSums)
	f.op("MOVQ %d(DI), DX", codeRows)

	f.label("row")
	d.begin(f)
	f.op("MOVQ SI, BX")
	f.op("MOVQ R12, R9")
	f.op("MOVQ R13, R10")
	f.op("MOVQ %d(DI), R8", codeX)
	f.op("MOVQ %d(DI), CX", codeGroups)
	f.label("group")
	d.multiply(f)
	f.op("ADDQ $%d, R8", d.group*4)
	f.op("ADDQ $%d, BX", d.group)
	f.op("ADDQ $4, R9")
	f.op("ADDQ $4, R10")
	f.op("DECQ CX")
	f.op("JNZ group")
	d.end(f)

	f.op("ADDQ $%d, R11", d.rows*d.sums()*d.isa.lanes*4)
	f.op("ADDQ %d(DI), SI", codeStride)
	f.op("ADDQ %d(DI), R12", codeScaleStride)
	f.op("ADDQ %d(DI), R13", codeScaleStride)
	f.op("DECQ DX")
	f.op("JNZ row")
	f.op("VZEROUPPER")
	f.op("RET")
}

// sums is how many registers of sums a row of x has.
func (d codeDot) sums() int {
	if d.kind == "add" {
		return 2
	}
	return 1
}

// sum is the register of one of the sums of a row of x.
func (d codeDot) sum(row, i int) int { return codeSum + row + codeRowsMost*(i%d.sums()) }

// each emits an instruction for all sums: of their register, and of their place in memory.
func (d codeDot) each(f *file, emit func(reg string, at string)) {
	for i := range d.rows * d.sums() {
		reg := fmt.Sprintf("%s%d", d.isa.reg, d.sum(i%d.rows, i/d.rows))
		emit(reg, fmt.Sprintf("%d(R11)", i*d.isa.lanes*4))
	}
}

// begin loads the sums of a row of codes, or makes them zero.
func (d codeDot) begin(f *file) {
	f.op("CMPQ %d(DI), $0", codeGoesOn)
	f.op("JNE goeson")
	d.each(f, func(reg, _ string) { f.op("VXORPS %s, %s, %s", reg, reg, reg) })
	f.op("JMP begun")
	f.label("goeson")
	d.each(f, func(reg, at string) { f.op("VMOVUPS %s, %s", at, reg) })
	f.label("begun")
}

// multiply adds the products of a group. Without summands the factor is multiplied by the sum of the group's products.
func (d codeDot) multiply(f *file) {
	z := d.isa.reg
	x := []string{"(R8)", "(R8)(AX*1)", "(R8)(AX*2)", "(R8)(R14*1)"}[:d.rows]
	f.op("VBROADCASTSS (R9), %s%d", z, codeFactor)
	if d.kind != "mul" {
		f.op("VBROADCASTSS (R10), %s%d", z, codeSummand)
	}

	for i := range d.group / d.isa.lanes {
		w := codeWide + i%2
		f.op("VPMOVSXBD %d(BX), %s%d", i*d.isa.lanes, z, w)
		f.op("VCVTDQ2PS %s%d, %s%d", z, w, z, w)
		switch d.kind {
		case "add":
			f.op("VFMADD213PS %s%d, %s%d, %s%d", z, codeSummand, z, codeFactor, z, w)
		case "sub":
			f.op("VSUBPS %s%d, %s%d, %s%d", z, codeSummand, z, w, z, w)
		}

		for r, from := range x {
			from = fmt.Sprintf("%d%s", i*d.isa.lanes*4, from)
			switch {
			case d.kind == "add":
				f.op("VFMADD231PS %s, %s%d, %s%d", from, z, w, z, d.sum(r, i))
			case i == 0:
				f.op("VMULPS %s, %s%d, %s%d", from, z, w, z, codeInner+r)
			default:
				f.op("VFMADD231PS %s, %s%d, %s%d", from, z, w, z, codeInner+r)
			}
		}
	}

	for r := 0; d.kind != "add" && r < d.rows; r++ {
		f.op("VFMADD231PS %s%d, %s%d, %s%d", z, codeFactor, z, codeInner+r, z, d.sum(r, 0))
	}
}

// end stores the sums of a row of codes, or adds their lanes up, in the order of ymmEnd.
func (d codeDot) end(f *file) {
	f.op("CMPQ %d(DI), $0", codeGoesOnLater)
	f.op("JEQ whole")
	d.each(f, func(reg, at string) { f.op("VMOVUPS %s, %s", reg, at) })
	f.op("JMP done")

	f.label("whole")
	if d.kind != "add" { // kernels for a single row add what they have none of, which makes +0 of -0
		f.op("VXORPS Y%d, Y%d, Y%d", codeSum+codeRowsMost, codeSum+codeRowsMost, codeSum+codeRowsMost)
	}
	for r := range d.rows {
		sum, other := codeSum+r, codeSum+codeRowsMost
		if d.kind == "add" {
			other += r
		}
		f.op("VADDPS %s%d, %s%d, %s%d", d.isa.reg, other, d.isa.reg, sum, d.isa.reg, sum)
		if d.isa.lanes == 16 {
			f.op("VEXTRACTF64X4 $1, Z%d, Y%d", sum, codeInner+r)
			f.op("VADDPS Y%d, Y%d, Y%d", codeInner+r, sum, sum)
		}
		f.op("VEXTRACTF128 $1, Y%d, X%d", sum, codeInner+r)
		f.op("VADDPS X%d, X%d, X%d", codeInner+r, sum, sum)
	}

	// Four sums of four lanes each: lanes 0 and 1 with 2 and 3 of two sums at a time, then those that are left.
	for pair := range (d.rows + 1) / 2 {
		a := codeSum + 2*pair
		b := min(a+1, codeSum+d.rows-1)
		f.op("VUNPCKLPD X%d, X%d, X%d", b, a, codeInner)
		f.op("VUNPCKHPD X%d, X%d, X%d", b, a, codeInner+1)
		f.op("VADDPS X%d, X%d, X%d", codeInner+1, codeInner, codeWide+pair)
	}
	last := codeWide + (d.rows+1)/2 - 1
	f.op("VSHUFPS $0x88, X%d, X%d, X%d", last, codeWide, codeInner)
	f.op("VSHUFPS $0xdd, X%d, X%d, X%d", last, codeWide, codeInner+1)
	f.op("VADDPS X%d, X%d, X%d", codeInner+1, codeInner, codeInner)

	f.op("MOVQ %d(DI), R8", codeOut)
	f.op("MOVQ %d(DI), R9", codeOutStride)
	f.op("LEAQ (R9)(R9*2), R10")
	f.op("VMOVSS X%d, (R8)", codeInner)
	for r, at := range []string{"(R8)(R9*1)", "(R8)(R9*2)", "(R8)(R10*1)"}[:d.rows-1] {
		f.op("VEXTRACTPS $%d, X%d, %s", r+1, codeInner, at)
	}
	f.op("ADDQ $4, %d(DI)", codeOut)
	f.label("done")
}

// writeQuantised writes the kernels that take quantised weights apart.
func writeQuantised(f *file) {
	sixTables(f)
	for _, u := range unpackFormats {
		u.write(f)
	}
	writeSpread(f, avx2Widen)
	writeSpread(f, avx512Widen)
	writeCodeDot(f, avx2Widen)
	writeCodeDot(f, avx512Widen)
}
