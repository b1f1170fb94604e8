package main

import "fmt"

// Offsets in cpu.sparseTileArgs.
const (
	sparseTileMask   = 0
	sparseTileX      = 8
	sparseTileOut    = 16
	sparseTileBuffer = 24
	sparseTileStride = 32
	sparseTileSteps  = 40
	sparseTileAhead  = 48
	sparseTileAcc    = 56
	sparseTileValues = 64
)

// writeSparseAMX writes the kernels that expand a sparse bfloat16 weight into tiles and multiply these.
func writeSparseAMX(f *file) {
	f.doc("Eight tiles of 16 rows and 64 bytes: palette 1.")

	for i, v := range []string{
		"1", "0", "0x0040004000400040", "0x0040004000400040", "0", "0", "0x1010101010101010",
		"0",
	} {
		f.raw(fmt.Sprintf("DATA sparseTiles<>+%d(SB)/8, $%s", 8*i, v))
	}

	f.raw("GLOBL sparseTiles<>(SB), RODATA|NOPTR, $64")

	for _, parts := range []int{1, 3} {
		for halves := 1; halves <= 2; halves++ {
			writeSparseTiles(f, parts, halves)
		}
	}
}

// writeSparseTiles writes one kernel. Registers: R8 the mask of the first row, with strides R9 and R10, DI the
// arguments with the places of the stored elements, R12 the distance of the prefetches, SI the buffer that is
// filled, AX the one that is full, BX x, R11 steps left, CX the stride of tiles. A step is multiplied after the
// next one was expanded, when its tiles are in the first-level cache.
func writeSparseTiles(f *file, parts, halves int) {
	name := fmt.Sprintf("sparseAMX%dx%d", parts, halves)
	f.doc(`func %s(d *sparseTileArgs)

out[j][i] (+)= Σ_p w[j][p]·x[i][p] for 32 rows j of a sparse w and %d rows i of x, d.steps steps of 32 p; x is packed as for
the direct kernels, and a row of out has 32 floats. d.values moves on to the elements after the last step.
It assumes that d.steps > 0. Tile registers are configured and released inside.`, name, halves*16)

	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ d+0(FP), DI")
	f.op("LEAQ sparseTiles<>(SB), DX")
	f.bytes(loadTileConfig(rDX), "LDTILECFG (DX)")

	for _, l := range []struct {
		at  int
		reg string
	}{
		{sparseTileMask, "R8"},
		{sparseTileX, "BX"},
		{sparseTileOut, "DX"},
		{sparseTileBuffer, "SI"},
		{sparseTileStride, "R9"},
		{sparseTileSteps, "R11"},
		{sparseTileAhead, "R12"},
		{sparseTileAcc, "R13"},
	} {
		f.op("MOVQ %d(DI), %s", l.at, l.reg)
	}

	f.op("LEAQ (R9)(R9*2), R10")
	f.op("LEAQ 2048(SI), AX")
	f.op("TESTQ R13, R13")
	f.op("JNZ load")
	directTiles(halves, func(t, _ int) { f.bytes(tileZero(t), "TILEZERO T%d", t) })
	f.op("JMP start")
	f.label("load")
	f.op("MOVQ $128, CX")
	directTiles(halves, func(t, at int) { f.bytes(tileLoad(t, rDX, rCX, at), "TILELOADD T%d", t) })
	f.label("start")
	f.op("MOVQ $64, CX")
	f.op("XORQ R13, R13")
	f.label("loop")
	expandTile(f)
	f.op("ADDQ $4, R8")
	f.op("TESTQ R13, R13")
	f.op("JZ next")
	multiplyTile(f, parts, halves)
	f.label("next")
	f.op("XCHGQ AX, SI")
	f.op("MOVQ $1, R13")
	f.op("DECQ R11")
	f.op("JNZ loop")
	multiplyTile(f, parts, halves)
	f.op("MOVQ %d(DI), DX", sparseTileOut)
	f.op("MOVQ $128, CX")
	directTiles(halves, func(t, at int) { f.bytes(tileStore(t, rDX, rCX, at), "TILESTORED T%d", t) })
	f.bytes(tileRelease(), "TILERELEASE")
	f.op("VZEROUPPER")
	f.op("RET")
}

// expandTile expands 32 columns of 32 rows into the buffer at SI.
func expandTile(f *file) {
	f.op("MOVQ R8, R14")

	for r := range 32 {
		f.op("MOVL (R14)%s, R15", []string{"", "(R9*1)", "(R9*2)", "(R10*1)"}[r%4])
		f.op("MOVQ %d(DI), DX", sparseTileValues+8*r)
		f.op("KMOVD R15, K1")
		f.op("VPEXPANDW.Z (DX), K1, Z0")
		f.op("PREFETCHT0 (DX)(R12*1)")
		f.op("POPCNTL R15, R15")
		f.op("LEAQ (DX)(R15*2), DX")
		f.op("VMOVDQU64 Z0, %d(SI)", 64*r)
		f.op("MOVQ DX, %d(DI)", sparseTileValues+8*r)
		if r%4 == 3 {
			f.op("LEAQ (R14)(R9*4), R14")
		}
	}
}

// multiplyTile multiplies the buffer at AX with the next step of x.
func multiplyTile(f *file, parts, halves int) {
	f.bytes(tileLoad(4, rAX, rCX, 0), "TILELOADD T4")
	f.bytes(tileLoad(5, rAX, rCX, tileBytes), "TILELOADD T5")

	for p := range parts {
		for h := range halves {
			b := 6 + (p*halves+h)%2
			f.bytes(tileLoad(b, rBX, rCX, (p*2+h)*tileBytes), "TILELOADD T%d", b)
			f.bytes(tdpbf16(h, 4, b), "TDPBF16PS T%d, T4, T%d", b, h)
			f.bytes(tdpbf16(2+h, 5, b), "TDPBF16PS T%d, T5, T%d", b, 2+h)
		}
	}

	f.op("ADDQ $%d, BX", parts*2*tileBytes)
}
