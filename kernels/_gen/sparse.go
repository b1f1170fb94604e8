package main

import "fmt"

// Offsets in cpu.fusedArgs and cpu.expandArgs.
const (
	fusedMask       = 0
	fusedX          = 8
	fusedMaskStride = 24
	fusedSteps      = 32
	fusedAhead      = 40
	fusedTails      = 48
	fusedTail       = 56
	fusedValues     = 72
	fusedTable      = 104

	expandDst    = 0
	expandValues = 8
	expandMask   = 16
	expandGroups = 24
	expandTable  = 32
)

// writeSparse writes the kernels that expand stored elements by a mask, and those that multiply them at once.
func writeSparse(f *file) {
	for _, typ := range []string{"F32", "BF16", "F16"} {
		for rows := 1; rows <= 4; rows++ {
			fusedShape{avx512Widen, typ, rows}.write(f)
		}
		for rows := 1; rows <= 2; rows++ {
			fusedShape{avx2Widen, typ, rows}.write(f)
		}
	}

	writeExpand(f, "expandWordsAVX512", 32, 2, func() {
		f.op("MOVL (SI), R8")
		f.op("KMOVD R8, K1")
		f.op("VPEXPANDW.Z (DX), K1, Z0")
		f.op("VMOVDQU64 Z0, (DI)")
	})

	writeExpand(f, "expandDoublesAVX512", 16, 4, func() {
		f.op("MOVWLZX (SI), R8")
		f.op("KMOVW R8, K1")
		f.op("VPEXPANDD.Z (DX), K1, Z0")
		f.op("VMOVDQU64 Z0, (DI)")
	})

	tableRow := func() {
		f.op("MOVBLZX (SI), R8")
		f.op("MOVQ R8, R9")
		f.op("SHLQ $4, R9")
	}

	writeExpand(f, "expandWordsAVX2", 8, 2, func() {
		tableRow()
		f.op("VMOVDQU (DX), X0")
		f.op("VPSHUFB (R10)(R9*1), X0, X0")
		f.op("VMOVDQU X0, (DI)")
	})

	writeExpand(f, "expandDoublesAVX2", 8, 4, func() {
		tableRow()
		f.op("VPMOVSXBD (R10)(R9*1), Y1")
		f.op("VPERMD (DX), Y1, Y0")
		f.op("VPSRAD $31, Y1, Y1")
		f.op("VPANDN Y0, Y1, Y0")
		f.op("VMOVDQU Y0, (DI)")
	})
}

// writeExpand writes an expander of lanes columns a step. The step takes the stored elements at DX and the mask
// at SI, and leaves the lanes at DI and the step's mask in R8.
func writeExpand(f *file, name string, lanes, size int, step func()) {
	f.doc(`func %s(e *expandArgs)

for j < %d·e.groups { if mask[j] { dst[j] = *values++ } else { dst[j] = 0 } }, leaving values in e. It assumes that e.groups > 0.`, name, lanes)
	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ e+0(FP), AX")
	f.op("MOVQ %d(AX), DI", expandDst)
	f.op("MOVQ %d(AX), DX", expandValues)
	f.op("MOVQ %d(AX), SI", expandMask)
	f.op("MOVQ %d(AX), CX", expandGroups)
	f.op("MOVQ %d(AX), R10", expandTable)
	f.label("loop")
	f.op("PREFETCHT0 1024(DX)")
	step()
	f.op("POPCNTL R8, R8")
	f.op("LEAQ (DX)(R8*%d), DX", size)
	f.op("ADDQ $%d, SI", lanes/8)
	f.op("ADDQ $%d, DI", lanes*size)
	f.op("DECQ CX")
	f.op("JNZ loop")
	f.op("MOVQ DX, %d(AX)", expandValues)
	f.op("VZEROUPPER")
	f.op("RET")
}

// fusedShape is one kernel that multiplies four rows of a sparse weight with rows rows of x.
type fusedShape struct {
	isa  widenISA
	typ  string
	rows int
}

// write emits the kernel. Registers: R8 to R11 the stored elements of the rows, AX their masks with strides SI
// and BX, R12 x, DX the distance of the prefetches, CX steps left, R13 the masks of the next four rows or, for
// AVX2, the table of the expansion. A tail is one more step with the masks in the arguments.
func (s fusedShape) write(f *file) {
	f.doc(`func fused%s%sx%d(d *fusedArgs)

d.out[r*%d+i] = Σ_p w[r][p]·x[i][p] for 4 rows of w and %d of x, over d.steps steps of 32 columns and one more if d.tails is 1.`,
		s.typ, s.isa.name, s.rows, s.rows, s.rows)

	f.raw(fmt.Sprintf("TEXT ·fused%s%sx%d(SB), NOSPLIT, $0-8", s.typ, s.isa.name, s.rows))
	f.op("MOVQ d+0(FP), DI")
	for r := range dotW {
		f.op("MOVQ %d(DI), R%d", fusedValues+8*r, 8+r)
	}

	f.op("MOVQ %d(DI), AX", fusedMask)
	f.op("MOVQ %d(DI), R12", fusedX)
	f.op("MOVQ %d(DI), SI", fusedMaskStride)
	f.op("MOVQ %d(DI), CX", fusedSteps)
	f.op("MOVQ %d(DI), DX", fusedAhead)
	f.op("LEAQ (SI)(SI*2), BX")

	if s.isa.lanes == 8 {
		f.op("MOVQ %d(DI), R13", fusedTable)
	} else {
		f.op("LEAQ (AX)(SI*4), R13")
	}

	for a := range dotW * s.rows {
		f.op("VXORPS %s%d, %s%d, %s%d", s.isa.reg, a, s.isa.reg, a, s.isa.reg, a)
	}

	if s.typ == "BF16" && s.isa.lanes == 16 {
		f.op("VPTERNLOGD $255, Z%d, Z%d, Z%d", fusedHigh, fusedHigh, fusedHigh)
		f.op("VPSLLD $16, Z%d, Z%d", fusedHigh, fusedHigh)
	}

	f.op("TESTQ CX, CX")
	f.op("JZ tail")
	f.label("loop")

	if s.isa.lanes == 8 {
		s.tableSteps(f)
	} else {
		f.op("PREFETCHT0 (R13)")
		f.op("ADDQ $16, R13")
		for v := range 2 * s.rows {
			f.op("VMOVUPS %d(R12), Z%d", v*64, fusedFirstX+v)
		}
		for r := range dotW {
			s.step(f, r)
		}
	}

	f.op("ADDQ $%d, R12", 128*s.rows)
	f.op("ADDQ $4, AX")
	f.op("DECQ CX")
	f.op("JNZ loop")
	f.label("tail")
	f.op("CMPQ %d(DI), $0", fusedTails)
	f.op("JEQ sum")
	f.op("MOVQ $0, %d(DI)", fusedTails)
	f.op("LEAQ %d(DI), AX", fusedTail)
	f.op("MOVQ $4, SI")
	f.op("MOVQ $12, BX")
	f.op("MOVQ $1, CX")
	f.op("JMP loop")
	f.label("sum")
	dotShape{s.isa, s.typ, s.rows}.reduce(f)
	f.op("VZEROUPPER")
	f.op("RET")
}

// Vector registers of the fused kernels: the sums come first.
const (
	fusedFirstX = 16 // two for every row of x
	fusedLow    = 24 // the first half of the elements, or the even ones
	fusedRest   = 25
	fusedHigh   = 26 // ones in the upper half of every lane
)

// fusedMasks are the masks of the four rows.
var fusedMasks = []string{"(AX)", "(AX)(SI*1)", "(AX)(SI*2)", "(AX)(BX*1)"}

// tableSteps multiplies 32 columns of every row by AVX2, a byte of the mask at a time.
func (s fusedShape) tableSteps(f *file) {
	x := func(i, b int) string { return fmt.Sprintf("%d(R12)", 128*i+32*b) }
	if s.rows == 1 {
		for b := range 4 {
			f.op("VMOVUPS %s, Y%d", x(0, b), dotW+b)
		}
		x = func(_, b int) string { return fmt.Sprintf("Y%d", dotW+b) }
	}

	for r := range dotW {
		f.op("PREFETCHT0 (R%d)(DX*1)", 8+r)
	}

	for b := range 4 {
		for r := range dotW {
			v := 8 + (b*dotW+r)%3*2
			f.op("MOVBLZX %d%s, R14", b, fusedMasks[r])
			f.op("POPCNTL R14, R15")
			f.op("SHLL $4, R14")

			if s.typ == "F32" {
				f.op("VPMOVSXBD (R13)(R14*1), Y%d", v+1)
				f.op("VPERMD (R%d), Y%d, Y%d", 8+r, v+1, v)
				f.op("VPSRAD $31, Y%d, Y%d", v+1, v+1)
				f.op("VPANDN Y%d, Y%d, Y%d", v, v+1, v)
				f.op("LEAQ (R%d)(R15*4), R%d", 8+r, 8+r)
			} else {
				f.op("VMOVDQU (R%d), X%d", 8+r, v)
				f.op("VPSHUFB (R13)(R14*1), X%d, X%d", v, v)
				s.isa.load(f, s.typ, fmt.Sprintf("X%d", v), v)
				f.op("LEAQ (R%d)(R15*2), R%d", 8+r, 8+r)
			}

			for i := range s.rows {
				f.op("VFMADD231PS %s, Y%d, Y%d", x(i, b), v, r*s.rows+i)
			}
		}
	}
}

// step multiplies 32 columns of row r by AVX-512.
func (s fusedShape) step(f *file, r int) {
	mask := fusedMasks[r]
	values := fmt.Sprintf("R%d", 8+r)
	f.op("PREFETCHT0 (%s)(DX*1)", values)

	switch s.typ {
	case "F32":
		for h, reg := range []int{fusedLow, fusedRest} {
			f.op("MOVWLZX %d%s, R15", 2*h, mask)
			f.op("KMOVW R15, K%d", 1+h)
			f.op("VPEXPANDD.Z (%s), K%d, Z%d", values, 1+h, reg)
			f.op("POPCNTL R15, R15")
			f.op("LEAQ (%s)(R15*4), %s", values, values)
		}
	default:
		f.op("MOVL %s, R15", mask)
		f.op("KMOVD R15, K1")
		f.op("VPEXPANDW.Z (%s), K1, Z%d", values, fusedRest)
		f.op("POPCNTL R15, R15")
		f.op("LEAQ (%s)(R15*2), %s", values, values)
	}

	switch s.typ {
	case "BF16":
		f.op("VPSLLD $16, Z%d, Z%d", fusedRest, fusedLow)
		f.op("VPANDD Z%d, Z%d, Z%d", fusedRest, fusedHigh, fusedRest)
	case "F16":
		f.op("VCVTPH2PS Y%d, Z%d", fusedRest, fusedLow)
		f.op("VEXTRACTI64X4 $1, Z%d, Y%d", fusedRest, fusedRest)
		f.op("VCVTPH2PS Y%d, Z%d", fusedRest, fusedRest)
	}

	for i := range s.rows {
		f.op("VFMADD231PS Z%d, Z%d, Z%d", fusedFirstX+2*i, fusedLow, r*s.rows+i)
		f.op("VFMADD231PS Z%d, Z%d, Z%d", fusedFirstX+2*i+1, fusedRest, r*s.rows+i)
	}
}
