package main

import "fmt"

// The tiles with AVX-VNNI compute what those with AVX-512 VNNI do, in the same order of float32 operations, on half as
// many rows of x and registers half as wide. All registers but four are sums of a group of elements, so that twelve
// products are on their way at a time; the results wait in the frame, which is read and written once for a group.

// Registers of the tiles: 12 sums, two of the weight, and x; at the end of a group two of factors and one that all lanes
// share.
const (
	vexWeight = 12
	vexX      = 14
	vexSum    = 15
)

// writeVexTile writes a micro-kernel on bytes; see writeByteTile. Registers: BX the weight, R13 x, CX, DX and R8 its
// offsets, scales and sums, R9 and R10 factors and summands.
func writeVexTile(f *file, name string, quads int, affine bool) {
	const regs = 2 * ymmTileRows
	f.doc(`func %s(t *byteTileArgs)

c[i][j] (+)= Σ_g x[i][g]·mul[g][j]·(Σ_p a[p][i]·b[p][j])%s for %d rows and 16 columns, for each of t.panels panels; see
byteTileArgs.`, name, map[bool]string{true: " + sums[i][g]·add[g][j]"}[affine], ymmTileRows)
	f.raw(fmt.Sprintf("TEXT ·%s(SB), NOSPLIT, $%d-8", name, 32*regs))
	f.op("MOVQ t+0(FP), DI")
	f.op("MOVQ %d(DI), R12", byteC)
	f.op("MOVQ %d(DI), SI", byteLdc)
	f.op("MOVQ %d(DI), AX", byteA)
	f.label("panel")
	f.op("VXORPS Y%d, Y%d, Y%d", vexX, vexX, vexX)
	for r := range regs {
		f.op("VMOVUPS Y%d, %d(SP)", vexX, 32*r)
	}
	f.op("MOVQ AX, R13")
	tilePointers(f)

	f.label("group")
	for i := range ymmTileRows {
		f.op("VPBROADCASTD %d(CX), Y%d", 4*i, 2*i)
		f.op("VMOVDQA Y%d, Y%d", 2*i, 2*i+1)
	}
	f.op("MOVQ %d(DI), R14", byteSteps)
	f.label("step")
	for q := range quads {
		for v := range 2 {
			f.op("VMOVDQU %d(BX), Y%d", 64*q+32*v, vexWeight+v)
		}
		for i := range ymmTileRows {
			f.op("VPBROADCASTD %d(R13), Y%d", 4*(ymmTileRows*q+i), vexX)
			for v := range 2 {
				f.bytes(vpdpbusd(2*i+v, vexWeight+v, vexX), "VPDPBUSD Y%d, Y%d, Y%d", vexX, vexWeight+v, 2*i+v)
			}
		}
	}
	f.op("ADDQ $%d, BX", 64*quads)
	f.op("ADDQ $%d, R13", 4*ymmTileRows*quads)
	f.op("DECQ R14")
	f.op("JNZ step")

	vexScale(f, affine)
	for _, r := range []string{"CX", "DX", "R8"} {
		f.op("ADDQ $%d, %s", 4*ymmTileRows, r)
	}
	f.op("ADDQ $64, R9")
	f.op("ADDQ $64, R10")
	f.op("DECQ R11")
	f.op("JNZ group")

	// Y0 and so on still are the results that the frame has.
	f.op("CMPQ %d(DI), $0", byteAcc)
	f.op("JEQ store")
	f.op("MOVQ R12, BX")
	for i := range ymmTileRows {
		for v := range 2 {
			f.op("VADDPS %d(BX), Y%d, Y%d", 32*v, 2*i+v, 2*i+v)
		}
		f.op("ADDQ SI, BX")
	}
	f.label("store")
	for i := range ymmTileRows {
		for v := range 2 {
			f.op("VMOVUPS Y%d, %d(R12)", 2*i+v, 32*v)
		}
		f.op("ADDQ SI, R12")
	}
	nextPanel(f)
}

// vexScale adds the integers of a group, scaled, to the results in the frame, and leaves them in their registers.
func vexScale(f *file, affine bool) {
	for v := range 2 {
		f.op("VMOVUPS %d(R9), Y%d", 32*v, vexWeight+v)
	}
	for i := range ymmTileRows {
		f.op("VBROADCASTSS %d(DX), Y%d", 4*i, vexX)
		if affine {
			f.op("VBROADCASTSS %d(R8), Y%d", 4*i, vexSum)
		}
		for v := range 2 {
			r := 2*i + v
			f.op("VCVTDQ2PS Y%d, Y%d", r, r)
			f.op("VMULPS Y%d, Y%d, Y%d", vexX, r, r)
			f.op("VFMADD213PS %d(SP), Y%d, Y%d", 32*r, vexWeight+v, r)
			if affine {
				f.op("VFMADD231PS %d(R10), Y%d, Y%d", 32*v, vexSum, r)
			}
			f.op("VMOVUPS Y%d, %d(SP)", r, 32*r)
		}
	}
}

// writeQuantisedTilesVNNI writes the tiles of quantised weights and rounded activations with AVX-VNNI.
func writeQuantisedTilesVNNI(f *file) {
	writeVexTile(f, "byteTile32AVXVNNI", 8, false)
	writeVexTile(f, "byteTile32AddAVXVNNI", 8, true)
	writeVexTile(f, "byteTile16AVXVNNI", 4, false)
}
