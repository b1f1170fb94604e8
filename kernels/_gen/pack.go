package main

import "fmt"

// transposer describes one transposing kernel.
type transposer struct {
	name        string
	rows, lanes int    // source rows taken together; 128-bit lanes of a register
	reg         string // register name prefix
	from        string // BF16 or F16, which are widened on the way, with AVX2; "": 32-bit units
}

// size is the size of a source unit in bytes.
func (t transposer) size() int {
	if t.from != "" {
		return 2
	}
	return 4
}

// writePack writes the kernels that bring operands into panel order.
func writePack(f *file) {
	writeTranspose(f, transposer{"pack16AVX512", 16, 4, "Z", ""})
	writeTranspose(f, transposer{"pack12AVX512", 12, 4, "Z", ""})
	writeTranspose(f, transposer{"pack8AVX2", 8, 2, "Y", ""})
	writeTranspose(f, transposer{"pack6AVX2", 6, 2, "Y", ""})
	writeTranspose(f, transposer{"pack8BF16AVX2", 8, 2, "Y", "BF16"})
	writeTranspose(f, transposer{"pack8F16AVX2", 8, 2, "Y", "F16"})
	writePairRows(f)
	writePairParts(f)
	writePairRounded(f)
	writePeaks(f)

	for _, isa := range []widenISA{avx512Widen, avx2Widen} {
		for _, t := range []string{"BF16", "F16"} {
			writeWiden(f, isa, t)
		}
	}
	for _, t := range []string{"F32", "BF16", "F16"} {
		writeColumns(f, avx2Widen, t)
	}
}

// writeTranspose writes a kernel that turns 32-bit units of a few rows into columns. Every register holds the
// same 128-bit chunk of rows r, r+4, r+8, …, one per lane, so that four registers need one 4×4 transposition
// within their lanes.
func writeTranspose(f *file, t transposer) {
	units := "32-bit units"
	if t.from != "" {
		units = t.from + " that is widened to float32"
	}
	f.doc(`func %s(p *packArgs)

dst[q·step + c·pitch + i] = src[i·stride + c] for %s, %d rows i, 16 columns c, p.n blocks q of 16 columns; step, pitch
and stride are in bytes. It assumes that p.n > 0.`, t.name, units, t.rows)

	f.raw("TEXT ·" + t.name + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ p+0(FP), DI")
	for i, r := range []string{"AX", "DX", "CX", "SI", "R8", "R9"} { // dst, src, n, step, pitch, stride
		f.op("MOVQ %d(DI), %s", i*8, r)
	}

	f.op("LEAQ (R9)(R9*2), R10")
	bases := []string{"DX", "R11", "R12", "R13"}
	for g := 1; g*4 < t.rows; g++ {
		f.op("LEAQ (%s)(R9*4), %s", bases[g-1], bases[g])
	}

	t.storeMask(f)
	f.label("block")
	f.op("MOVQ AX, BX")
	for chunk := range 4 {
		t.chunk(f, chunk, bases)
	}
	for g := 0; g*4 < t.rows; g++ {
		f.op("ADDQ $%d, %s", 16*t.size(), bases[g])
	}

	f.op("ADDQ SI, AX")
	f.op("DECQ CX")
	f.op("JNZ block")
	f.op("VZEROUPPER")
	f.op("RET")
}

// storeMask prepares the mask of a row of dst that is not a whole register.
func (t transposer) storeMask(f *file) {
	if t.rows == 12 {
		f.op("MOVL $0xfff, DI")
		f.op("KMOVW DI, K1")
	}
}

// chunk transposes 4 columns: registers 0 to 3 are loaded, 4 to 7 hold interleaved rows, 8 to 11 the columns.
func (t transposer) chunk(f *file, chunk int, bases []string) {
	index := []string{"", "(R9*1)", "(R9*2)", "(R10*1)"}
	for r := range 4 {
		if t.from != "" {
			t.widened(f, chunk, r, index[r], bases[1])
			continue
		}
		f.op("VMOVUPS %d(DX)%s, X%d", chunk*16, index[r], r)
		if 4+r < t.rows {
			f.op("VINSERTF128 $1, %d(%s)%s, Y%d, Y%d", chunk*16, bases[1], index[r], r, r)
		}
		for lane := 2; lane < t.lanes && lane*4+r < t.rows; lane++ {
			f.op("VINSERTF32X4 $%d, %d(%s)%s, Z%d, Z%d", lane, chunk*16, bases[lane], index[r], r, r)
		}
	}

	z := t.reg
	for pair := range 2 {
		f.op("VUNPCKLPS %s%d, %s%d, %s%d", z, 2*pair+1, z, 2*pair, z, 4+2*pair)
		f.op("VUNPCKHPS %s%d, %s%d, %s%d", z, 2*pair+1, z, 2*pair, z, 5+2*pair)
	}

	for c := range 4 {
		op := "VUNPCKLPD"
		if c%2 == 1 {
			op = "VUNPCKHPD"
		}
		f.op("%s %s%d, %s%d, %s%d", op, z, 6+c/2, z, 4+c/2, z, 8+c)
	}

	for c := range 4 {
		switch t.rows {
		case 12:
			f.op("VMOVUPS Z%d, K1, (BX)", 8+c)
		case 6: // in two, because AMD's processors take tens of cycles for a masked store
			f.op("VMOVUPS X%d, (BX)", 8+c)
			f.op("VEXTRACTF128 $1, Y%d, X%d", 8+c, 8+c)
			f.op("VMOVLPS X%d, 16(BX)", 8+c)
		default:
			f.op("VMOVUPS %s%d, (BX)", z, 8+c)
		}

		f.op("ADDQ R8, BX")
	}
}

// widened loads four units of row r and of row r + 4 as float32.
func (t transposer) widened(f *file, chunk, r int, index, fours string) {
	load := "VPMOVZXWD"
	if t.from == "F16" {
		load = "VCVTPH2PS"
	}
	f.op("%s %d(DX)%s, X%d", load, chunk*8, index, r)
	f.op("%s %d(%s)%s, X12", load, chunk*8, fours, index)
	f.op("VINSERTF128 $1, X12, Y%d, Y%d", r, r)
	if t.from == "BF16" {
		f.op("VPSLLD $16, Y%d, Y%d", r, r)
	}
}

// writePeaks writes the search for the largest magnitude among 16-bit and 32-bit floats.
func writePeaks(f *file) {
	for _, p := range []struct {
		bits, lanes      int
		typ, shift, vmax string
		ret, store       string
	}{
		{16, 32, "uint16", "VPSRLW", "VPMAXUW", "$0-18", "MOVW"},
		{32, 16, "float32", "VPSRLD", "VPMAXUD", "$0-20", "MOVL"},
	} {
		f.doc(`func peak%dAVX512(p *%s, n int) uint%d

Returns the bits of the largest |p[i]| of n elements, a multiple of %d greater than 0.`, p.bits, p.typ, p.bits, p.lanes)
		f.raw(fmt.Sprintf("TEXT ·peak%dAVX512(SB), NOSPLIT, %s", p.bits, p.ret))
		f.op("MOVQ p+0(FP), AX")
		f.op("MOVQ n+8(FP), CX")
		f.op("VPTERNLOGD $255, Z31, Z31, Z31")
		f.op("%s $1, Z31, Z31", p.shift)
		f.op("VPXORQ Z0, Z0, Z0")
		f.label("loop")
		f.op("VPANDD (AX), Z31, Z1")
		f.op("%s Z1, Z0, Z0", p.vmax)
		f.op("ADDQ $64, AX")
		f.op("SUBQ $%d, CX", p.lanes)
		f.op("JNZ loop")
		f.op("VEXTRACTI64X4 $1, Z0, Y1")
		f.op("%s Y1, Y0, Y0", p.vmax)
		f.op("VEXTRACTI128 $1, Y0, X1")
		f.op("%s X1, X0, X0", p.vmax)

		for _, order := range []string{"$0x4e", "$0xb1"} {
			f.op("VPSHUFD %s, X0, X1", order)
			f.op("%s X1, X0, X0", p.vmax)
		}

		if p.bits == 16 {
			f.op("VPSRLD $16, X0, X1")
			f.op("%s X1, X0, X0", p.vmax)
		}

		f.op("VMOVD X0, AX")
		f.op("%s AX, ret+16(FP)", p.store)
		f.op("VZEROUPPER")
		f.op("RET")
	}
}

// loadPairArgs leaves dst in AX, src in DX, n in CX, step in SI, pitch in R8, half in R9, part in R10 and
// stride in R11.
func loadPairArgs(f *file) {
	f.op("MOVQ p+0(FP), DI")
	for i, r := range []string{"AX", "DX", "CX", "SI", "R8", "R9", "R10", "R11"} {
		f.op("MOVQ %d(DI), %s", i*8, r)
	}
	f.op("ADDQ AX, R9")
}

// pairLoop writes the loop over n blocks of 16 pairs of rows: body finds the rows at DX and DX+R11, and writes
// columns 0 to 15 from BX and columns 16 to 31 from R12.
func pairLoop(f *file, body func()) {
	f.label("block")
	f.op("MOVQ AX, BX")
	f.op("MOVQ R9, R12")
	f.op("MOVQ $16, R13")
	f.label("pair")
	body()
	f.op("LEAQ (DX)(R11*2), DX")
	f.op("ADDQ R8, BX")
	f.op("ADDQ R8, R12")
	f.op("DECQ R13")
	f.op("JNZ pair")
	f.op("ADDQ SI, AX")
	f.op("ADDQ SI, R9")
	f.op("DECQ CX")
	f.op("JNZ block")
}

// wordOrder writes a table of 32 words: even ones count from first, odd ones from first+gap.
func wordOrder(f *file, name string, first, gap int) {
	for j := range 16 {
		f.raw(fmt.Sprintf("DATA %s<>+%d(SB)/4, $0x%04x%04x", name, 4*j, first+gap+j, first+j))
	}
	f.raw("GLOBL " + name + "<>(SB), RODATA|NOPTR, $64")
}

// writePairRows writes the kernel that pairs rows of 16-bit elements.
func writePairRows(f *file) {
	f.doc("The order of 16 pairs of two rows, from the first and from the second half of 32 words each.")
	wordOrder(f, "pairsLow", 0, 32)
	wordOrder(f, "pairsHigh", 16, 32)
	f.doc(`func pairRowsAVX512(p *pairArgs)

For n blocks of 16 pairs of rows of 16-bit elements, and 32 columns c: dst[q·step + r·pitch + c/16·half + c%%16] gets element c of
row 32q+2r in its low half and of row 32q+2r+1 in its high half. It assumes that p.n > 0.`)

	f.raw("TEXT ·pairRowsAVX512(SB), NOSPLIT, $0-8")
	loadPairArgs(f)
	f.op("VMOVDQU64 pairsLow<>(SB), Z30")
	f.op("VMOVDQU64 pairsHigh<>(SB), Z31")
	pairLoop(f, func() {
		f.op("VMOVDQU64 (DX), Z0")
		f.op("VMOVDQU64 (DX)(R11*1), Z1")
		f.op("VMOVDQA64 Z0, Z2")
		f.op("VPERMT2W Z1, Z30, Z0")
		f.op("VPERMT2W Z1, Z31, Z2")
		f.op("VMOVDQU64 Z0, (BX)")
		f.op("VMOVDQU64 Z2, (R12)")
	})

	f.op("VZEROUPPER")
	f.op("RET")
}

// writePairParts writes the kernel that splits floats and pairs rows of their parts. A register of pairs gives
// back the floats of its even row by a shift and those of its odd row by a mask.
func writePairParts(f *file) {
	f.doc("The order of 16 pairs of the two halves of 32 words.")
	wordOrder(f, "pairHalves", 0, 16)
	f.doc(`func pairPartsAVX512(p *pairArgs)

Does what pairRowsAVX512 does for rows of floats, split into three parts as splitBF16AVX512 does; part i goes i·p.part bytes
further. p.peak becomes the largest of its old value and the bits of every |src|. It assumes that p.n > 0.`)

	f.raw("TEXT ·pairPartsAVX512(SB), NOSPLIT, $0-8")
	loadPairArgs(f)
	f.op("VMOVDQU64 pairHalves<>(SB), Z31")
	f.op("VPTERNLOGD $255, Z29, Z29, Z29")
	f.op("VPSRLD $1, Z29, Z28")
	f.op("VPSLLD $16, Z29, Z29")
	f.op("VPBROADCASTD 64(DI), Z30")
	pairLoop(f, func() {
		for h := range 2 {
			f.op("VMOVUPS %d(DX), Z%d", h*64, 8*h)
			f.op("VMOVUPS %d(DX)(R11*1), Z%d", h*64, 8*h+1)
		}

		for _, z := range []int{0, 1, 8, 9} {
			f.op("VPANDD Z28, Z%d, Z%d", z, z+4)
			f.op("VPMAXUD Z%d, Z30, Z30", z+4)
		}

		for part := range 3 {
			for h, to := range []string{"BX", "R12"} {
				z := 8 * h
				f.bytes(cvtne2(z+2, z+1, z), "VCVTNE2PS2BF16 Z%d, Z%d, Z%d", z, z+1, z+2)
				f.op("VPERMW Z%d, Z31, Z%d", z+2, z+2)
				f.op("VMOVDQU64 Z%d, (%s)%s", z+2, to, []string{"", "(R10*1)", "(R10*2)"}[part])
				if part == 2 {
					continue
				}

				f.op("VPSLLD $16, Z%d, Z%d", z+2, z+3)
				f.op("VPANDD Z29, Z%d, Z%d", z+2, z+2)
				f.op("VSUBPS Z%d, Z%d, Z%d", z+3, z, z)
				f.op("VSUBPS Z%d, Z%d, Z%d", z+2, z+1, z+1)
			}
		}
	})

	reducePeak(f, 64)
}

// writePairRounded writes the kernel that rounds floats and pairs rows of them.
func writePairRounded(f *file) {
	f.doc(`func pairRoundedAVX512(p *pairArgs)

Does what pairRowsAVX512 does for rows of floats, rounded to bfloat16, nearest even. It assumes that p.n > 0.`)
	f.raw("TEXT ·pairRoundedAVX512(SB), NOSPLIT, $0-8")
	loadPairArgs(f)
	f.op("VMOVDQU64 pairHalves<>(SB), Z31")
	pairLoop(f, func() {
		for h, to := range []string{"BX", "R12"} {
			z := 4 * h
			f.op("VMOVUPS %d(DX), Z%d", h*64, z)
			f.op("VMOVUPS %d(DX)(R11*1), Z%d", h*64, z+1)
			f.bytes(cvtne2(z+2, z+1, z), "VCVTNE2PS2BF16 Z%d, Z%d, Z%d", z, z+1, z+2)
			f.op("VPERMW Z%d, Z31, Z%d", z+2, z+2)
			f.op("VMOVDQU64 Z%d, (%s)", z+2, to)
		}
	})

	f.op("VZEROUPPER")
	f.op("RET")
}

// reducePeak stores the largest unsigned 32-bit lane of Z30 at DI+at and returns.
func reducePeak(f *file, at int) {
	for _, r := range []string{"$0x4e", "$0xb1"} {
		f.op("VSHUFF64X2 %s, Z30, Z30, Z0", r)
		f.op("VPMAXUD Z0, Z30, Z30")
	}

	for _, r := range []string{"$0x4e", "$0xb1"} {
		f.op("VPSHUFD %s, Z30, Z0", r)
		f.op("VPMAXUD Z0, Z30, Z30")
	}

	f.op("VMOVD X30, %d(DI)", at)
	f.op("VZEROUPPER")
	f.op("RET")
}

// widenISA is one instruction set of the widening kernels.
type widenISA struct {
	name, reg, half string
	lanes           int
}

var (
	avx512Widen = widenISA{"AVX512", "Z", "Y", 16}
	avx2Widen   = widenISA{"AVX2", "Y", "X", 8}
)

// load emits a widening load of one register of 16-bit elements; from is a memory operand or a half register.
func (w widenISA) load(f *file, typ, from string, reg int) {
	if typ == "F16" {
		f.op("VCVTPH2PS %s, %s%d", from, w.reg, reg)
		return
	}
	f.op("VPMOVZXWD %s, %s%d", from, w.reg, reg)
	f.op("VPSLLD $16, %s%d, %s%d", w.reg, reg, w.reg, reg)
}

func writeWiden(f *file, w widenISA, typ string) {
	name := "widen" + typ + w.name
	f.doc(`func %s(dst *float32, src *uint16, n int)

dst[i] = src[i] widened, for n elements, a multiple of %d greater than 0.`, name, w.lanes)
	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-24")
	f.op("MOVQ dst+0(FP), AX")
	f.op("MOVQ src+8(FP), DX")
	f.op("MOVQ n+16(FP), CX")
	f.label("loop")
	w.load(f, typ, "(DX)", 0)
	f.op("VMOVUPS %s0, (AX)", w.reg)
	f.op("ADDQ $%d, DX", w.lanes*2)
	f.op("ADDQ $%d, AX", w.lanes*4)
	f.op("SUBQ $%d, CX", w.lanes)
	f.op("JNZ loop")
	f.op("VZEROUPPER")
	f.op("RET")
}

// columnAhead is how many rows ahead columns are fetched: rows may be pages apart, where the processor looks no further
// by itself.
const columnAhead = 8

// writeColumns writes the packing of panels of 16 columns.
func writeColumns(f *file, w widenISA, typ string) {
	f.doc(`func columns%s%s(c *columnArgs)

dst[p·size + q·64 + 4·j] = src[q·stride][16·p + j] widened, for c.n rows q, c.panels panels p and 16 columns j; size and
stride are in bytes. It assumes that c.n and c.panels are greater than 0.`, typ, w.name)
	f.raw("TEXT ·columns" + typ + w.name + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ c+0(FP), DI")
	for i, r := range []string{"AX", "DX", "CX", "SI", "R8", "R9"} { // dst, src, n, stride, panels, size
		f.op("MOVQ %d(DI), %s", i*8, r)
	}
	f.op("MOVQ SI, R12")
	f.op("IMULQ $%d, R12", columnAhead)

	size := 2
	if typ == "F32" {
		size = 4
	}
	f.label("row")
	f.op("MOVQ AX, R10")
	f.op("MOVQ DX, R11")
	f.op("MOVQ R8, BX")
	f.label("panel")
	f.op("PREFETCHT0 (R11)(R12*1)")
	for i := range 2 {
		if from := fmt.Sprintf("%d(R11)", i*8*size); typ == "F32" {
			f.op("VMOVUPS %s, Y%d", from, i)
		} else {
			w.load(f, typ, from, i)
		}
	}
	for i := range 2 {
		f.op("VMOVUPS Y%d, %d(R10)", i, i*32)
	}
	f.op("ADDQ R9, R10")
	f.op("ADDQ $%d, R11", 16*size)
	f.op("DECQ BX")
	f.op("JNZ panel")
	f.op("ADDQ $64, AX")
	f.op("ADDQ SI, DX")
	f.op("DECQ CX")
	f.op("JNZ row")
	f.op("VZEROUPPER")
	f.op("RET")
}
