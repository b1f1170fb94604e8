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
