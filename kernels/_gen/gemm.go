package main

// Offsets in cpu.tileArgs.
const (
	argA = 8 * iota
	argB
	argC
	argK
	argLdc
	argPanels
	argAStep
	argAcc
	argFetch
	argFetchRow
	argFetchStep
)

// tileShape is a register tile of a micro-kernel: rows × (vecs vectors of lanes 32-bit elements).
type tileShape struct {
	rows, vecs, lanes int
	reg               string // register name prefix
}

func (t tileShape) vecBytes() int { return t.lanes * 4 }

func (t tileShape) rowBytes() int { return t.vecs * t.vecBytes() }

// acc is the register that accumulates vector v of row i.
func (t tileShape) acc(i, v int) int { return i*t.vecs + v }

func writeGemm(f *file) {
	avx512 := tileShape{rows: 12, vecs: 2, lanes: 16, reg: "Z"}
	writeTile(f, "gemmF32AVX512", "float32", avx512, func(i int) { avx512.step(f, i, 3) })
	avx2 := tileShape{rows: 6, vecs: 2, lanes: 8, reg: "Y"}
	writeTile(f, "gemmF32AVX2", "float32", avx2, func(i int) { avx2.step(f, i, 2) })
	writeFetchingTile(f, "gemmF32FetchAVX2", avx2)
}

// step multiplies the broadcast element i of the A column into row i; temps registers after the B vectors rotate.
func (t tileShape) step(f *file, i, temps int) {
	b := t.rows * t.vecs
	tmp := b + t.vecs + i%temps
	f.op("VBROADCASTSS %d(R13), %s%d", i*4, t.reg, tmp)
	for v := range t.vecs {
		f.op("VFMADD231PS %s%d, %s%d, %s%d", t.reg, tmp, t.reg, b+v, t.reg, t.acc(i, v))
	}
}

// writeTile writes a micro-kernel over 32-bit units (a float32, or a pair of bfloat16); row(i) emits the
// products of row i.
func writeTile(f *file, name, unit string, t tileShape, row func(i int)) {
	f.doc(`func %s(t *tileArgs)

c[i][j] (+)= Σ_p a[p][i]·b[p][j] for %d rows and %d columns, p < t.k units (%s), for each of t.panels panels of a.
It assumes that t.k > 0 and t.panels > 0.`, name, t.rows, t.vecs*t.lanes, unit)

	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-8")
	loadArgs(f)
	f.label("panel")
	for r := range t.rows * t.vecs {
		f.op("VPXOR%s %s%d, %s%d, %s%d", map[string]string{"Z": "Q", "Y": ""}[t.reg], t.reg, r, t.reg, r, t.reg, r)
	}

	f.op("MOVQ AX, R13")
	f.op("MOVQ R8, BX")
	f.op("MOVQ R9, CX")
	prefetchC(f, t)
	f.label("loop")
	b := t.rows * t.vecs
	for v := range t.vecs {
		f.op("VMOVUPS %d(BX), %s%d", v*t.vecBytes(), t.reg, b+v)
	}

	f.op("PREFETCHT0 512(R13)")
	for i := range t.rows {
		row(i)
	}

	f.op("ADDQ $%d, R13", t.rows*4)
	f.op("ADDQ $%d, BX", t.rowBytes())
	f.op("DECQ CX")
	f.op("JNZ loop")
	storeTile(f, t)
	f.op("ADDQ R11, AX")
	f.op("DECQ R10")
	f.op("JNZ panel")
	f.op("VZEROUPPER")
	f.op("RET")
}

// fetchSteps is how many steps of k a fetching tile takes, one line each, before it goes on in the rows that it fetches.
const fetchSteps = 16

// writeFetchingTile is writeTile on floats, which fetches rows of the right operand's next panel into the second-level
// cache meanwhile: where there are few panels of a, their products take no longer than the memory takes for it.
func writeFetchingTile(f *file, name string, t tileShape) {
	f.doc(`func %s(t *tileArgs)

It does what gemmF32AVX2 does, and fetches what is said in tileArgs.`, name)

	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-8")
	loadArgs(f)
	f.op("MOVQ %d(DI), R14", argFetch)
	f.label("panel")
	for r := range t.rows * t.vecs {
		f.op("VPXOR Y%d, Y%d, Y%d", r, r, r)
	}
	f.op("MOVQ AX, R13")
	f.op("MOVQ R8, BX")
	f.op("MOVQ R9, CX")
	prefetchC(f, t)
	f.op("MOVQ t+0(FP), DI")
	f.op("MOVQ %d(DI), R12", argFetchRow)

	f.label("chunk")
	f.op("MOVQ t+0(FP), R11")
	f.op("MOVQ R14, DI")
	f.op("ADDQ %d(R11), R14", argFetchStep)
	f.op("MOVQ $%d, R11", fetchSteps)
	f.op("CMPQ CX, R11")
	f.op("CMOVQLT CX, R11")
	f.op("SUBQ R11, CX")
	f.label("loop")
	b := t.rows * t.vecs
	for v := range t.vecs {
		f.op("VMOVUPS %d(BX), Y%d", v*t.vecBytes(), b+v)
	}
	f.op("PREFETCHT1 (DI)")
	for i := range t.rows {
		t.step(f, i, 2)
	}
	f.op("ADDQ R12, DI")
	f.op("ADDQ $%d, R13", t.rows*4)
	f.op("ADDQ $%d, BX", t.rowBytes())
	f.op("DECQ R11")
	f.op("JNZ loop")
	f.op("TESTQ CX, CX")
	f.op("JNZ chunk")

	f.op("MOVQ t+0(FP), DI")
	f.op("MOVQ %d(DI), R11", argAStep)
	f.op("MOVQ %d(DI), R12", argAcc)
	storeTile(f, t)
	f.op("ADDQ R11, AX")
	f.op("DECQ R10")
	f.op("JNZ panel")
	f.op("VZEROUPPER")
	f.op("RET")
}

// loadArgs leaves a in AX, b in R8, c in DX, k in R9, ldc (bytes) in SI, panels in R10, the step of a in R11,
// acc in R12.
func loadArgs(f *file) {
	f.op("MOVQ t+0(FP), DI")

	for _, a := range []struct {
		off int
		reg string
	}{
		{argA, "AX"},
		{argB, "R8"},
		{argC, "DX"},
		{argK, "R9"},
		{argLdc, "SI"},
		{argPanels, "R10"},
		{argAStep, "R11"},
		{argAcc, "R12"},
	} {
		f.op("MOVQ %d(DI), %s", a.off, a.reg)
	}
}

func prefetchC(f *file, t tileShape) {
	f.op("MOVQ DX, DI")
	for range t.rows {
		f.op("PREFETCHT0 (DI)")
		f.op("PREFETCHT0 %d(DI)", t.rowBytes()-4)
		f.op("ADDQ SI, DI")
	}
}

// storeTile adds the tile to c or overwrites it, and moves DX to the next panel's rows.
func storeTile(f *file, t tileShape) {
	f.op("TESTQ R12, R12")
	f.op("JZ store")
	f.op("MOVQ DX, DI")

	for i := range t.rows {
		for v := range t.vecs {
			f.op("VADDPS %d(DI), %s%d, %s%d", v*t.vecBytes(), t.reg, t.acc(i, v), t.reg, t.acc(i, v))
		}
		f.op("ADDQ SI, DI")
	}

	f.label("store")

	for i := range t.rows {
		for v := range t.vecs {
			f.op("VMOVUPS %s%d, %d(DX)", t.reg, t.acc(i, v), v*t.vecBytes())
		}
		f.op("ADDQ SI, DX")
	}
}
