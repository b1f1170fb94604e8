package main

import "fmt"

// The kernels for a single row of x as it is: the codes of a weight become floats in registers, eight or sixteen at a
// time, and are multiplied as those of cpu.codeArgs are, in the same order of operations. Nothing is stored on the way:
// a few bytes of what has just been stored as a whole are slow to load.

// Registers of these kernels beside those of ymmFormat: codes come in Y0, of superblocks also in Y1.
const (
	exactWide  = 2  // codes as numbers of 32 bits
	exactTemp  = 5  // codes that are widened next; of blocks of 32 it is exactOther
	exactScale = 3  // what a group is multiplied by
	exactAdd   = 6  // what is added to its elements; without that, the sum of its products
	exactSum   = 8  // sums: two registers, which take turns where something is added
	exactOther = 7  // of blocks of 32: Y5 has constants
	exactMinus = 14 // what is subtracted from codes
	exactZero  = 10 // the same of a group, as floats
)

// exactGroup says where the products of 32 codes come from and go to.
type exactGroup struct {
	isa  widenISA
	reg  int    // of the codes, bytes with their sign
	from string // where they lie instead in memory, and
	at   int    // at which offset
	temp int
	x    int // offset of the floats
	span int // elements that share a factor
	add  bool
	zero bool // something is subtracted from codes as floats

	scale func(span int) // loads the factor, and the summand, of the spans one after the other
}

// write adds the products. Without summands, the factor is multiplied by the sum of a span's products.
func (e exactGroup) write(f *file) {
	z := e.isa.reg
	lanes := e.isa.lanes
	for i := range 32 / lanes {
		first, last := i*lanes%e.span == 0, (i+1)*lanes%e.span == 0
		if first && e.scale != nil {
			e.scale(i * lanes / e.span)
		}

		e.widen(f, i)
		f.op("VCVTDQ2PS %s%d, %s%d", z, exactWide, z, exactWide)
		if e.zero {
			f.op("VSUBPS %s%d, %s%d, %s%d", z, exactZero, z, exactWide, z, exactWide)
		}
		x := fmt.Sprintf("%d(R8)", e.x+4*lanes*i)
		switch {
		case e.add:
			f.op("VFMADD213PS %s%d, %s%d, %s%d", z, exactAdd, z, exactScale, z, exactWide)
			f.op("VFMADD231PS %s, %s%d, %s%d", x, z, exactWide, z, exactSum+i%2)
			continue
		case first:
			f.op("VMULPS %s, %s%d, %s%d", x, z, exactWide, z, exactAdd)
		default:
			f.op("VFMADD231PS %s, %s%d, %s%d", x, z, exactWide, z, exactAdd)
		}
		if last {
			f.op("VFMADD231PS %s%d, %s%d, %s%d", z, exactScale, z, exactAdd, z, exactSum)
		}
	}
}

// widen makes integers of 32 bits of the i-th codes.
func (e exactGroup) widen(f *file, i int) {
	from := fmt.Sprintf("X%d", e.temp)
	eights := e.isa.lanes / 8
	switch {
	case e.from != "":
		from = fmt.Sprintf("%d(%s)", e.at+e.isa.lanes*i, e.from)
	case i == 0:
		from = fmt.Sprintf("X%d", e.reg)
	case i*eights == 1:
		f.op("VPSRLDQ $8, X%d, X%d", e.reg, e.temp)
	case i*eights == 2:
		f.op("VEXTRACTI128 $1, Y%d, X%d", e.reg, e.temp)
	default:
		f.op("VPSRLDQ $8, X%d, X%d", e.temp, e.temp)
	}
	f.op("VPMOVSXBD %s, %s%d", from, e.isa.reg, exactWide)
}

// spread fills the parts of a register with 128 bits of another one, its first or second ones.
func spread(f *file, isa widenISA, part, from, to int) {
	if isa.lanes == 16 {
		f.op("VSHUFF32X4 $0x%02x, Z%d, Z%d, Z%d", 0x55*part, from, from, to)
		return
	}
	f.op("VPERM2F128 $0x%02x, Y%d, Y%d, Y%d", 0x11*part, from, from, to)
}

// pick fills a register with one of four lanes that are in all parts of another one.
func pick(f *file, isa widenISA, lane, from, to int) {
	f.op("VPERMILPS $0x%02x, %s%d, %s%d", 0x55*lane, isa.reg, from, isa.reg, to)
}

// writeExact emits the kernel of a format of blocks.
func (l ymmFormat) writeExact(f *file, isa widenISA) {
	exactHead(f, isa, l.name, map[bool]string{true: "superblocks", false: "blocks"}[l.super])
	switch l.name {
	case "Q5_K":
		splat(f, fmt.Sprintf("Y%d", ymmBit), every(0x10))
	case "Q6_K":
		splat(f, fmt.Sprintf("Y%d", ymmBit), every(0x30))
	}
	if l.super {
		splat(f, fmt.Sprintf("Y%d", ymmLow), every(15))
	} else {
		l.constants(f)
	}
	minus := map[string]byte{"Q4_0": 8, "Q5_0": 16, "Q6_K": 32}[l.name]
	if minus > 0 {
		splat(f, fmt.Sprintf("Y%d", exactMinus), every(minus))
	}

	exactRow(f)
	f.label("block")
	bytes, floats := l.bytes/2, 128
	if l.super {
		bytes, floats = l.bytes, 1024
	}
	for at := 0; at < bytes; at += 64 {
		f.op("PREFETCHT0 %d(BX)", rowAhead+at)
	}
	switch {
	case l.name == "Q6_K":
		exactSixteens(f, isa, l)
	case l.super:
		exactSuper(f, isa, l)
	default:
		l.exactBlock(f, isa)
	}
	f.op("ADDQ $%d, BX", bytes)
	f.op("ADDQ $%d, R8", floats)
	f.op("DECQ CX")
	f.op("JNZ block")
	exactEnd(f, isa)
}

// exactHead begins a kernel.
func exactHead(f *file, isa widenISA, name, unit string) {
	f.doc(`func exact%s%s(r *rowArgs)

r.out[i] = Σ_p w[i][p]·x[p] for r.rows rows of r.steps %s and one of x, floats at r.codes.`, name, isa.name, unit)
	f.raw(fmt.Sprintf("TEXT ·exact%s%s(SB), NOSPLIT, $0-8", name, isa.name))
	f.op("MOVQ r+0(FP), DI")
	f.op("MOVQ %d(DI), SI", rowW)
	f.op("MOVQ %d(DI), R13", rowOut)
}

// exactRow begins a row.
func exactRow(f *file) {
	f.label("row")
	f.op("MOVQ SI, BX")
	f.op("MOVQ %d(DI), R8", rowCodes)
	f.op("MOVQ %d(DI), CX", rowSteps)
	for y := exactSum; y < exactSum+2; y++ {
		f.op("VXORPS Y%d, Y%d, Y%d", y, y, y)
	}
}

// exactEnd ends a row.
func exactEnd(f *file, isa widenISA) {
	if isa.lanes == 16 {
		f.op("VADDPS Z%d, Z%d, Z0", exactSum+1, exactSum)
		f.op("VEXTRACTF64X4 $1, Z0, Y1")
	} else {
		f.op("VMOVAPS Y%d, Y0", exactSum)
		f.op("VMOVAPS Y%d, Y1", exactSum+1)
	}
	ymmEnd(f)
}

// exactBlock adds the products of a block of 32 elements.
func (l ymmFormat) exactBlock(f *file, isa widenISA) {
	e := exactGroup{isa: isa, temp: exactOther, span: 32, add: l.affine, from: "BX", at: 2}
	if l.codes != nil {
		e.from = ""
		l.codes(f, 0)
	}
	if l.name == "Q4_0" || l.name == "Q5_0" {
		f.op("VPSUBB Y%d, Y0, Y0", exactMinus)
	}

	f.op("VMOVD (BX), X%d", exactScale)
	f.op("VCVTPH2PS X%d, X%d", exactScale, exactScale)
	if l.affine {
		f.op("VMOVSHDUP X%d, X%d", exactScale, exactAdd)
		f.op("VBROADCASTSS X%d, %s%d", exactAdd, isa.reg, exactAdd)
	}
	f.op("VBROADCASTSS X%d, %s%d", exactScale, isa.reg, exactScale)
	e.write(f)
}

// exactFactors are the registers with the factors of a superblock, four in all parts of each. Of Q4_K and Q5_K the last
// two have summands.
var exactFactors = []int{10, 11, 12, exactOther}

// exactSuper adds the products of a superblock of Q4_K or Q5_K.
func exactSuper(f *file, isa widenISA, l ymmFormat) {
	sixBits(f, "BX")
	f.op("VMOVD (BX), X4")
	f.op("VCVTPH2PS X4, X4")
	f.op("VBROADCASTSS X4, Y3")
	f.op("VMOVSHDUP X4, X4")
	f.op("VBROADCASTSS X4, Y4")
	f.op("VPCMPEQD Y2, Y2, Y2")
	f.op("VPSLLD $31, Y2, Y2")
	f.op("VXORPS Y2, Y4, Y4")
	f.op("VPMOVZXBD X0, Y1")
	f.op("VPSRLDQ $8, X0, X0")
	f.op("VPMOVZXBD X0, Y2")
	f.op("VCVTDQ2PS Y1, Y1")
	f.op("VCVTDQ2PS Y2, Y2")
	f.op("VMULPS Y3, Y1, Y1")
	f.op("VMULPS Y4, Y2, Y2")
	for i, r := range exactFactors {
		spread(f, isa, i%2, 1+i/2, r)
	}

	l.groups(f, func(reg, g int) {
		exactGroup{isa: isa, reg: reg, temp: exactTemp, x: 128 * g, span: 32, add: true, scale: func(int) {
			pick(f, isa, g%4, exactFactors[g/4], exactScale)
			pick(f, isa, g%4, exactFactors[2+g/4], exactAdd)
		}}.write(f)
	})
}

// exactSixteens adds the products of a superblock of Q6_K, whose factors are those of 16 elements.
func exactSixteens(f *file, isa widenISA, l ymmFormat) {
	f.op("MOVWLZX 208(BX), AX")
	f.op("VMOVD AX, X2")
	f.op("VCVTPH2PS X2, X2")
	f.op("VBROADCASTSS X2, Y2")
	for h := range 2 {
		f.op("VPMOVSXBD %d(BX), Y0", 192+8*h)
		f.op("VCVTDQ2PS Y0, Y0")
		f.op("VMULPS Y2, Y0, Y0")
		for i := range 2 {
			spread(f, isa, i, 0, exactFactors[2*h+i])
		}
	}

	l.groups(f, func(reg, g int) {
		f.op("VPSUBB Y%d, Y%d, Y%d", exactMinus, reg, reg)
		exactGroup{isa: isa, reg: reg, temp: exactTemp, x: 128 * g, span: 16, scale: func(span int) {
			pick(f, isa, (2*g+span)%4, exactFactors[g/2], exactScale)
		}}.write(f)
	})
}

// writeExactGrouped writes the kernels for formats whose scales lie beside the codes, of r.perGroup blocks of 32
// elements each. Zeros are what is subtracted from the codes of a group, floats at r.sums, those of all rows one after
// the other.
func writeExactGrouped(f *file, isa widenISA, format string, zeros bool) {
	exactHead(f, isa, format+map[bool]string{true: "Zeros"}[zeros], "blocks")
	splat(f, fmt.Sprintf("Y%d", ymmLow), every(15))
	splat(f, fmt.Sprintf("Y%d", exactMinus), every(8))
	f.op("MOVQ %d(DI), DX", rowMul)
	if zeros {
		f.op("MOVQ %d(DI), R12", rowSums)
	}
	exactRow(f)
	f.op("MOVQ DX, R11")
	f.label("group")
	f.op("MOVQ %d(DI), R14", rowPerGroup)
	f.op("CMPQ CX, R14")
	f.op("CMOVQLT CX, R14")
	f.op("SUBQ R14, CX")
	f.op("VBROADCASTSS (R11), %s%d", isa.reg, exactScale)
	f.op("ADDQ $4, R11")
	if zeros {
		f.op("VBROADCASTSS (R12), %s%d", isa.reg, exactZero)
		f.op("ADDQ $4, R12")
	}

	f.label("block")
	f.op("PREFETCHT0 %d(BX)", rowAhead)
	e := exactGroup{isa: isa, temp: exactOther, span: 32, from: "BX", zero: zeros}
	if format == "Int4" {
		e.from = ""
		f.op("VPMOVZXBW (BX), Y0")
		f.op("VPSLLW $4, Y0, Y1")
		f.op("VPOR Y1, Y0, Y0")
		f.op("VPAND Y%d, Y0, Y0", ymmLow)
		if !zeros {
			f.op("VPSUBB Y%d, Y0, Y0", exactMinus)
		}
	}
	e.write(f)
	f.op("ADDQ $%d, BX", map[string]int{"Int4": 16, "Int8": 32}[format])
	f.op("ADDQ $128, R8")
	f.op("DECQ R14")
	f.op("JNZ block")
	f.op("TESTQ CX, CX")
	f.op("JNZ group")
	f.op("ADDQ %d(DI), DX", rowMulStride)
	exactEnd(f, isa)
}

// writeQuantisedExact writes the kernels that multiply rows of quantised weights by activations as they are.
func writeQuantisedExact(f *file) {
	sixTables(f)
	for _, isa := range []widenISA{avx2Widen, avx512Widen} {
		for _, l := range ymmFormats {
			l.writeExact(f, isa)
		}
		for _, zeros := range []bool{false, true} {
			writeExactGrouped(f, isa, "Int4", zeros)
			writeExactGrouped(f, isa, "Int8", zeros)
		}
	}
}
