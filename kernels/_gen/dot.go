package main

import "fmt"

// dotShape is one kernel of the skinny products: four rows of w against rows rows of x.
type dotShape struct {
	isa  widenISA
	typ  string // element type of w; "Pair" is bfloat16 with x in bfloat16 too
	rows int
}

const dotW = 4

func (s dotShape) name() string { return fmt.Sprintf("dot%s%sx%d", s.typ, s.isa.name, s.rows) }

// perReg is the elements of w that one register takes.
func (s dotShape) perReg() int {
	if s.typ == "Pair" {
		return 2 * s.isa.lanes
	}
	return s.isa.lanes
}

// wBytes is the size of perReg elements of w; those of x always fill a register.
func (s dotShape) wBytes() int {
	if s.typ == "F32" {
		return s.perReg() * 4
	}
	return s.perReg() * 2
}

func (s dotShape) acc(w, x int) int { return w*s.rows + x }

// writeDot writes the skinny kernels: AVX-512 for up to four rows of x, AVX2 for up to three.
func writeDot(f *file) {
	for _, typ := range []string{"F32", "BF16", "F16"} {
		for rows := 1; rows <= 4; rows++ {
			dotShape{avx512Widen, typ, rows}.write(f)
		}
		for rows := 1; rows <= 3; rows++ {
			dotShape{avx2Widen, typ, rows}.write(f)
		}

		writeAxpy(f, avx512Widen, typ)
		writeAxpy(f, avx2Widen, typ)
	}

	for rows := 1; rows <= 4; rows++ {
		dotShape{avx512Widen, "Pair", rows}.write(f)
	}
}

// write emits the kernel. Registers: AX x, SI and BX one and three strides of x, R8 to R11 the rows of w, DX
// the distance of the prefetches, CX whole registers left, R13 elements after them.
func (s dotShape) write(f *file) {
	f.doc(`func %s(d *dotArgs)

d.out[r*%d+i] = Σ_p w[r][p]·x[i][p] for 4 rows of w and %d of x, over d.k elements%s.`, s.name(), s.rows, s.rows,
		map[string]string{"AVX512": " and d.tail more", "AVX2": ""}[s.isa.name])

	f.raw("TEXT ·" + s.name() + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ d+0(FP), DI")
	f.op("MOVQ 0(DI), R8")
	f.op("MOVQ 8(DI), AX")
	f.op("MOVQ 24(DI), R13")
	f.op("MOVQ 32(DI), SI")
	f.op("MOVQ 40(DI), CX")
	f.op("MOVQ 48(DI), BX")
	f.op("MOVQ 56(DI), DX")
	f.op("LEAQ (R8)(R13*1), R9")
	f.op("LEAQ (R9)(R13*1), R10")
	f.op("LEAQ (R10)(R13*1), R11")

	for r := range s.accs() {
		f.op("VPXOR%s %s%d, %s%d, %s%d", map[string]string{"Z": "Q", "Y": ""}[s.isa.reg], s.isa.reg, r, s.isa.reg, r,
			s.isa.reg, r)
	}

	if s.isa.lanes == 16 {
		s.tailMask(f)
	}

	f.op("LEAQ (SI)(SI*2), BX")
	s.loop(f)
	s.reduce(f)
	f.op("VZEROUPPER")
	f.op("RET")
}

// accs is the number of accumulators. One row of x has as few as it has beside others, so that its sums are the same
// bits: four additions at a time keep up with memory.
func (s dotShape) accs() int { return dotW * s.rows }

func (s dotShape) tailMask(f *file) {
	f.op("MOVQ CX, R13")
	f.op("MOVQ BX, CX")
	f.op("MOVQ $1, R12")
	f.op("SHLQ CX, R12")
	f.op("DECQ R12")
	f.op("KMOVD R12, K1")
	f.op("MOVQ R13, CX")
	f.op("MOVQ BX, R13")
}

// loop runs over whole registers, two at a time for one row of x, then over the masked rest.
func (s dotShape) loop(f *file) {
	rows := []string{"R8", "R9", "R10", "R11"}
	unroll := 1
	if s.rows == 1 {
		unroll = 2
	}

	label := func(l string) { f.label("%s", l) }
	f.op("SHRQ $%d, CX", map[int]int{32: 5, 16: 4, 8: 3}[s.perReg()])

	if unroll == 2 {
		label("twice")
		f.op("SUBQ $2, CX")
		f.op("JLT once")
		for _, r := range rows {
			f.op("PREFETCHT0 (%s)(DX*1)", r)
		}

		s.step(f, rows, 0, false)
		s.step(f, rows, 1, false)
		s.advance(f, rows, 2)
		f.op("JMP twice")
		label("once")
		f.op("ADDQ $2, CX")
		f.op("JZ rest")
		s.step(f, rows, 0, false)
		s.advance(f, rows, 1)
	} else {
		f.op("TESTQ CX, CX")
		f.op("JZ rest")
		label("loop")
		for _, r := range rows {
			f.op("PREFETCHT0 (%s)(DX*1)", r)
		}

		s.step(f, rows, 0, false)
		s.advance(f, rows, 1)
		f.op("DECQ CX")
		f.op("JNZ loop")
	}

	label("rest")

	if s.isa.lanes == 16 {
		f.op("TESTQ R13, R13")
		f.op("JZ sum")
		s.step(f, rows, 0, true)
		label("sum")
	}
}

func (s dotShape) advance(f *file, rows []string, regs int) {
	f.op("ADDQ $%d, AX", regs*s.isa.lanes*4)
	for _, r := range rows {
		f.op("ADDQ $%d, %s", regs*s.wBytes(), r)
	}
}

// step multiplies one register of every row; u selects the second one.
func (s dotShape) step(f *file, rows []string, u int, masked bool) {
	z := s.isa.reg
	w := s.accs()
	x := s.accs() + 1

	index := []string{"", "(SI*1)", "(SI*2)", "(BX*1)"}
	load, mask := "VMOVUPS", ""
	if masked {
		load, mask = "VMOVUPS.Z", "K1, "
	}
	if masked && s.typ == "Pair" {
		load = "VMOVDQU16.Z"
	}
	for i := range s.rows {
		f.op("%s %d(AX)%s, %s%s%d", load, u*s.isa.lanes*4, index[i], mask, z, x+i)
	}

	for r, row := range rows {
		from := fmt.Sprintf("%d(%s)", u*s.wBytes(), row)
		switch {
		case s.typ == "F32" || s.typ == "Pair":
			f.op("%s %s, %s%s%d", load, from, mask, z, w)
		case masked:
			f.op("VMOVDQU16.Z %s, K1, Y%d", from, w)
			s.isa.load(f, s.typ, fmt.Sprintf("Y%d", w), w)
		default:
			s.isa.load(f, s.typ, from, w)
		}

		for i := range s.rows {
			acc := s.acc(r, i)
			if s.typ == "Pair" {
				f.bytes(dpbf16(acc, w, x+i), "VDPBF16PS Z%d, Z%d, Z%d", x+i, w, acc)
				continue
			}
			f.op("VFMADD231PS %s%d, %s%d, %s%d", z, x+i, z, w, z, acc)
		}
	}
}

// reduce adds up the lanes of every accumulator, pairwise, and stores the sums.
func (s dotShape) reduce(f *file) {
	f.op("MOVQ d+0(FP), DI")
	f.op("MOVQ 16(DI), DI")

	t := s.accs()
	for a := range dotW * s.rows {
		half := "VEXTRACTF128"
		if s.isa.lanes == 16 {
			half = "VEXTRACTF32X4"
			f.op("VEXTRACTF64X4 $1, Z%d, Y%d", a, t)
			f.op("VADDPS Y%d, Y%d, Y%d", t, a, a)
		}

		f.op("%s $1, Y%d, X%d", half, a, t)
		f.op("VADDPS X%d, X%d, X%d", t, a, a)
	}

	for a := 0; a < dotW*s.rows; a += 4 {
		f.op("VHADDPS X%d, X%d, X%d", a+1, a, a)
		f.op("VHADDPS X%d, X%d, X%d", a+3, a+2, a+2)
		f.op("VHADDPS X%d, X%d, X%d", a+2, a, a)
		f.op("VMOVUPS X%d, %d(DI)", a, a*4)
	}
}

// writeAxpy writes the kernel of the skinny product with w in [k, n] order: four rows of w added to one row of sums.
func writeAxpy(f *file, isa widenISA, typ string) {
	f.doc(`func axpy%s%s(a *axpyArgs)

a.sum[j] += Σ_r a.scale[r]·w[r][j] for 4 rows of w and a.n columns, a multiple of %d greater than 0.`, typ, isa.name,
		isa.lanes)

	f.raw("TEXT ·axpy" + typ + isa.name + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ a+0(FP), DI")
	f.op("MOVQ 0(DI), AX")
	f.op("MOVQ 8(DI), R8")
	f.op("MOVQ 16(DI), R12")
	f.op("MOVQ 24(DI), CX")
	f.op("MOVQ 32(DI), DX")

	rows := []string{"R8", "R9", "R10", "R11"}
	for i := 1; i < dotW; i++ {
		f.op("LEAQ (%s)(R12*1), %s", rows[i-1], rows[i])
	}
	for i := range dotW {
		f.op("VBROADCASTSS %d(DI), %s%d", 40+4*i, isa.reg, 8+i)
	}

	f.label("loop")
	f.op("VMOVUPS (AX), %s0", isa.reg)

	for i, r := range rows {
		f.op("PREFETCHT0 (%s)(DX*1)", r)

		if typ == "F32" {
			f.op("VFMADD231PS (%s), %s%d, %s0", r, isa.reg, 8+i, isa.reg)
			continue
		}

		isa.load(f, typ, "("+r+")", 1+i)
		f.op("VFMADD231PS %s%d, %s%d, %s0", isa.reg, 1+i, isa.reg, 8+i, isa.reg)
	}

	f.op("VMOVUPS %s0, (AX)", isa.reg)
	f.op("ADDQ $%d, AX", isa.lanes*4)
	for _, r := range rows {
		f.op("ADDQ $%d, %s", dotShape{isa: isa, typ: typ}.wBytes(), r)
	}

	f.op("SUBQ $%d, CX", isa.lanes)
	f.op("JNZ loop")
	f.op("VZEROUPPER")
	f.op("RET")
}
