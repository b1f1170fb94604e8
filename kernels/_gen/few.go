package main

import "fmt"

// few is the kernel of the products of few rows by blocks of the inner size with AVX2, for one type of w. It takes four
// rows of w after the other, and for each of them groups of three rows of x, which fill the registers, and then of two,
// of which as many are left over as one row would leave. The first group reads the rows of w and keeps them as float32,
// next to each other, for the other groups.
//
// Registers: AX x, R8 to R11 the rows of w, R15 what is kept of them, R12 the sums, R13 groups left, SI steps of eight
// elements, CX those left, BX what is fetched, and DX the distance of what is fetched beside it.
type few string

// Offsets in cpu.fewArgs.
const (
	fewW = 8 * iota
	fewX
	fewSums
	fewKept
	fewStride
	fewSteps
	fewThrees
	fewTwos
	fewAdd
	fewQuads
	fewFetch
	fewBeside
	fewStep
)

func writeFew(f *file) {
	for _, typ := range []few{"F32", "BF16", "F16"} {
		typ.write(f)
	}
	writeAddLanes(f)
}

// wBytes is the size of eight elements of a row of w.
func (t few) wBytes() int {
	if t == "F32" {
		return 32
	}
	return 16
}

func (t few) write(f *file) {
	f.doc(`func few%sAVX2(f *fewArgs)

sums[i][r][l] (+)= Σ_p w[r][8p+l]·x[i][8p+l] for every four rows of w and all rows of x, p < f.steps, which is greater
than 0, as are f.quads and the number of groups. f.quads becomes 0.`, t)

	f.raw(fmt.Sprintf("TEXT ·few%sAVX2(SB), NOSPLIT, $0-8", t))
	f.op("MOVQ f+0(FP), DI")
	f.op("MOVQ %d(DI), R8", fewW)
	f.op("MOVQ %d(DI), R12", fewSums)
	f.op("MOVQ %d(DI), CX", fewStride)
	f.op("MOVQ %d(DI), SI", fewSteps)
	f.op("MOVQ %d(DI), DX", fewBeside)
	f.op("LEAQ (R8)(CX*1), R9")
	f.op("LEAQ (R9)(CX*1), R10")
	f.op("LEAQ (R10)(CX*1), R11")

	f.op("MOVQ %d(DI), BX", fewFetch)

	f.label("quad")
	f.op("MOVQ %d(DI), AX", fewX)
	f.op("MOVQ %d(DI), R13", fewThrees)
	f.op("TESTQ R13, R13")
	f.op("JZ pair")
	t.group(f, "first3", 3, true)
	f.op("DECQ R13")
	f.op("JZ pairs")

	f.label("three")
	t.group(f, "next3", 3, false)
	f.op("DECQ R13")
	f.op("JNZ three")

	f.label("pairs")
	f.op("MOVQ %d(DI), R13", fewTwos)
	f.op("TESTQ R13, R13")
	f.op("JZ end")
	f.op("JMP two")

	f.label("pair")
	t.group(f, "first2", 2, true)
	f.op("MOVQ %d(DI), R13", fewTwos)
	f.op("DECQ R13")
	f.op("JZ end")

	f.label("two")
	t.group(f, "next2", 2, false)
	f.op("DECQ R13")
	f.op("JNZ two")

	f.label("end")
	f.op("MOVQ %d(DI), CX", fewStride)
	f.op("SHLQ $2, CX")
	f.op("MOVQ SI, R13")
	f.op("SHLQ $%d, R13", map[int]int{32: 5, 16: 4}[t.wBytes()])
	f.op("SUBQ R13, CX")
	for r := range dotW {
		f.op("ADDQ CX, %s", fewBases[r])
	}
	f.op("DECQ %d(DI)", fewQuads)
	f.op("JNZ quad")
	f.op("VZEROUPPER")
	f.op("RET")
}

var fewBases = [dotW]string{"R8", "R9", "R10", "R11"}

// group multiplies four rows of w, those in memory or those that are kept, with a group of rows of x; the name begins
// its labels.
func (t few) group(f *file, name string, rows int, first bool) {
	accs := dotW * rows
	f.op("MOVQ %d(DI), R15", fewKept)
	f.op("CMPQ %d(DI), $0", fewAdd)
	f.op("JNE %sOn", name)
	for a := range accs {
		f.op("VPXOR Y%d, Y%d, Y%d", a, a, a)
	}
	f.op("JMP %sBegin", name)
	f.label("%sOn", name)
	for a := range accs {
		f.op("VMOVUPS %d(R12), Y%d", a*32, a)
	}

	f.label("%sBegin", name)
	f.op("MOVQ SI, CX")
	f.op("SUBQ $2, CX")
	f.op("JLT %sOnce", name)

	f.label("%sTwice", name)
	f.op("PREFETCHT1 (BX)")
	f.op("PREFETCHT1 (BX)(DX*1)")
	t.step(f, rows, 0, first)
	t.step(f, rows, 1, first)
	t.advance(f, rows, 2, first)
	f.op("ADDQ %d(DI), BX", fewStep)
	f.op("SUBQ $2, CX")
	f.op("JGE %sTwice", name)

	f.label("%sOnce", name)
	f.op("ADDQ $2, CX")
	f.op("JZ %sStore", name)
	t.step(f, rows, 0, first)
	t.advance(f, rows, 1, first)

	f.label("%sStore", name)
	for a := range accs {
		f.op("VMOVUPS Y%d, %d(R12)", a, a*32)
	}
	f.op("ADDQ $%d, R12", accs*32)
}

// step multiplies eight elements of every row; u selects the second step.
func (t few) step(f *file, rows, u int, first bool) {
	w, x := dotW*rows, dotW*rows+1
	for i := range rows {
		f.op("VMOVUPS %d(AX), Y%d", (u*rows+i)*32, x+i)
	}

	for r := range dotW {
		kept := fmt.Sprintf("%d(R15)", (u*dotW+r)*32)
		switch from := fmt.Sprintf("%d(%s)", u*t.wBytes(), fewBases[r]); {
		case !first:
			f.op("VMOVUPS %s, Y%d", kept, w)
		case t == "F32":
			f.op("VMOVUPS %s, Y%d", from, w)
		default:
			avx2Widen.load(f, string(t), from, w)
		}
		if first {
			f.op("VMOVUPS Y%d, %s", w, kept)
		}

		for i := range rows {
			f.op("VFMADD231PS Y%d, Y%d, Y%d", x+i, w, i*dotW+r)
		}
	}
}

func (t few) advance(f *file, rows, steps int, first bool) {
	f.op("ADDQ $%d, AX", steps*rows*32)
	f.op("ADDQ $%d, R15", steps*dotW*32)
	for _, r := range fewBases {
		if first {
			f.op("ADDQ $%d, %s", steps*t.wBytes(), r)
		}
	}
}

// writeAddLanes writes the end of the sums: their lanes are added up in the order in which the dot kernels do it.
func writeAddLanes(f *file) {
	f.doc(`func addLanesAVX2(l *laneArgs)

out[i][4q+r] = Σ_l sums[q][i][r][l] for l.quads q, l.rows i and four r: lanes l and l+4 first, then neighbours. It
assumes that l.quads and l.rows are greater than 0.`)
	f.raw("TEXT ·addLanesAVX2(SB), NOSPLIT, $0-8")
	f.op("MOVQ l+0(FP), DI")
	f.op("MOVQ 0(DI), AX")
	f.op("MOVQ 8(DI), R8")
	f.op("MOVQ 16(DI), SI")
	f.op("MOVQ 32(DI), R9")
	f.label("quad")
	f.op("MOVQ R8, DX")
	f.op("MOVQ 24(DI), CX")
	f.label("row")
	for pair := range 2 {
		lo, hi := 2*pair, 2*pair+1
		f.op("VMOVUPS %d(AX), X%d", lo*32, lo)
		f.op("VINSERTF128 $1, %d(AX), Y%d, Y%d", hi*32, lo, lo)
		f.op("VMOVUPS %d(AX), X%d", lo*32+16, hi)
		f.op("VINSERTF128 $1, %d(AX), Y%d, Y%d", hi*32+16, hi, hi)
		f.op("VADDPS Y%d, Y%d, Y%d", hi, lo, lo)
	}
	f.op("VHADDPS Y2, Y0, Y0") // the sums 0 and 2 in two halves each in the lower lane, 1 and 3 in the upper one
	f.op("VHADDPS Y0, Y0, Y0")
	f.op("VEXTRACTF128 $1, Y0, X1")
	f.op("VUNPCKLPS X1, X0, X0")
	f.op("VMOVUPS X0, (DX)")
	f.op("ADDQ $%d, AX", dotW*32)
	f.op("ADDQ SI, DX")
	f.op("DECQ CX")
	f.op("JNZ row")
	f.op("ADDQ $16, R8")
	f.op("DECQ R9")
	f.op("JNZ quad")
	f.op("VZEROUPPER")
	f.op("RET")
}
