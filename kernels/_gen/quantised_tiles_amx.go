package main

import "fmt"

// The tiles with AMX compute what those with VNNI do, in the same order of float32 operations, on 16 rows of x and 16 of
// the weight: one product of tiles has the integers of a group of up to 64 elements, exactly. Both sides are signed, so
// that nothing has to be taken off. The integers go through memory to be scaled by AVX-512; while those of one group are
// scaled, the next group is multiplied. Rows with a single scale collect all steps of a block in tiles.

// amxByteRows is the rows of x of a tile; columns are 16.
const amxByteRows = 16

// Registers of the tiles: 16 results, integers on their way, factors and summands.
const (
	amxResult = 0
	amxOnWay  = 16
	amxMul    = 24
	amxAdd    = 25
)

// amxGroups are the numbers of elements that share scales: a step of 64 stands for those of rows with one.
var amxGroups = []int{16, 32, 64}

// writeByteConfigs writes the shapes of tiles for every kind of group: 0 to 3 are sums, 4 to 6 x, and 7 the weight; where
// a group is one product, 6 is of the weight too.
func writeByteConfigs(f *file) {
	for _, k := range amxGroups {
		name := fmt.Sprintf("byteTiles%d<>", k)
		x, w := k, 64 // bytes of a row
		wide, rows := [8]int{64, 64, 64, 64, x, x, x, w}, [8]int{16, 16, 16, 16, 16, 16, 16, k / 4}
		if k < 64 {
			wide[6], rows[6] = w, k/4
		}

		f.doc("Eight tiles for steps of %d elements: palette 1.", k)
		f.raw(fmt.Sprintf("DATA %s+0(SB)/8, $1", name))
		f.raw(fmt.Sprintf("DATA %s+8(SB)/8, $0", name))
		for half := range 2 {
			v := uint64(0)
			for i := range 4 {
				v |= uint64(wide[4*half+i]) << (16 * i)
			}
			f.raw(fmt.Sprintf("DATA %s+%d(SB)/8, $0x%016x", name, 16+8*half, v))
		}
		f.raw(fmt.Sprintf("DATA %s+32(SB)/8, $0", name))
		f.raw(fmt.Sprintf("DATA %s+40(SB)/8, $0", name))

		v := uint64(0)
		for i := range rows {
			v |= uint64(rows[i]) << (8 * i)
		}
		f.raw(fmt.Sprintf("DATA %s+48(SB)/8, $0x%016x", name, v))
		f.raw(fmt.Sprintf("DATA %s+56(SB)/8, $0", name))
		f.raw(fmt.Sprintf("GLOBL %s(SB), RODATA|NOPTR, $64", name))
	}
}

// amxByteHead begins a kernel.
func amxByteHead(f *file, name string, group int, affine bool) {
	f.doc(`func %s(t *byteTileArgs)

c[i][j] (+)= Σ_g x[i][g]·mul[g][j]·(Σ_p a[p][i]·b[p][j])%s for %d rows and 16 columns, for each of t.panels panels; see
byteTileArgs. Tile registers are configured and released inside.`, name,
		map[bool]string{true: " + sums[i][g]·add[g][j]"}[affine], amxByteRows)
	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ t+0(FP), DI")
	f.op("LEAQ byteTiles%d<>(SB), AX", group)
	f.bytes(loadTileConfig(rAX), "LDTILECFG (AX)")
	f.op("MOVQ %d(DI), R12", byteC)
	f.op("MOVQ %d(DI), R14", byteLdc)
	f.op("MOVQ %d(DI), DX", byteInts)
	f.op("MOVQ $64, CX")
}

// writeAMXByteTile writes a micro-kernel for groups of 16 or 32 elements. Registers: AX x, its rows SI bytes apart, BX the
// weight, R13 and R8 scales and sums of x, R9 and R10 factors and summands, R11 the groups left, DX the integers of two
// groups, R12 c, R14 the distance of its rows, R15 the panel.
func writeAMXByteTile(f *file, name string, group int, affine bool) {
	amxByteHead(f, name, group, affine)
	f.op("MOVQ %d(DI), AX", byteA)
	f.op("MOVQ $%d, SI", group)
	f.label("panel")
	f.op("MOVQ AX, R15")
	amxBytePointers(f)
	f.op("MOVQ %d(DI), R11", byteGroups)
	for i := range amxByteRows {
		f.op("VPXORQ Z%d, Z%d, Z%d", amxResult+i, amxResult+i, amxResult+i)
	}

	amxByteProducts(f, 0, group)
	f.label("loop")
	for set := range 2 {
		f.op("DECQ R11")
		f.op("JZ last%d", set)
		amxByteProducts(f, 1-set, group)
		amxByteScale(f, set*tileBytes, affine)
		f.op("ADDQ $%d, R13", 4*amxByteRows)
		f.op("ADDQ $%d, R8", 4*amxByteRows)
		f.op("ADDQ $64, R9")
		f.op("ADDQ $64, R10")
	}
	f.op("JMP loop")

	f.label("last1")
	amxByteScale(f, tileBytes, affine)
	f.op("JMP sum")
	f.label("last0")
	amxByteScale(f, 0, affine)
	f.label("sum")
	amxByteStore(f, "")
	f.op("MOVQ R15, AX")
	anotherPanel(f)
	amxByteTail(f)
}

// amxBytePointers loads what a panel begins with, but for x.
func amxBytePointers(f *file) {
	for _, r := range []struct {
		at  int
		reg string
	}{{byteB, "BX"}, {byteScale, "R13"}, {byteSums, "R8"}, {byteMul, "R9"}, {byteAdd, "R10"}} {
		f.op("MOVQ %d(DI), %s", r.at, r.reg)
	}
}

// amxByteProducts writes the integers of the next group to memory, by one of two sets of tiles.
func amxByteProducts(f *file, set, group int) {
	x, w := 4+set, 6+set
	f.bytes(tileZero(set), "TILEZERO T%d", set)
	f.bytes(tileLoad(x, rAX, rSI, 0), "TILELOADD T%d", x)
	f.bytes(tileLoad(w, rBX, rCX, 0), "TILELOADD T%d", w)
	f.bytes(tdpbssd(set, x, w), "TDPBSSD T%d, T%d, T%d", w, x, set)
	f.bytes(tileStore(set, rDX, rCX, set*tileBytes), "TILESTORED T%d", set)
	f.op("ADDQ $%d, AX", amxByteRows*group)
	f.op("ADDQ $%d, BX", 16*group)
}

// amxByteScale adds the integers at an offset, scaled, to the results.
func amxByteScale(f *file, at int, affine bool) {
	f.op("VMOVUPS (R9), Z%d", amxMul)
	if affine {
		f.op("VMOVUPS (R10), Z%d", amxAdd)
	}
	for i := range amxByteRows {
		r := amxOnWay + i%8
		f.op("VCVTDQ2PS %d(DX), Z%d", at+64*i, r)
		f.op("VMULPS.BCST %d(R13), Z%d, Z%d", 4*i, r, r)
		f.op("VFMADD231PS Z%d, Z%d, Z%d", amxMul, r, amxResult+i)
		if affine {
			f.op("VFMADD231PS.BCST %d(R8), Z%d, Z%d", 4*i, amxAdd, amxResult+i)
		}
	}
}

// amxByteStore adds c to the results if it is to, stores them, and moves on to the next rows.
func amxByteStore(f *file, suffix string) {
	f.op("CMPQ %d(DI), $0", byteAcc)
	f.op("JEQ store%s", suffix)
	f.op("MOVQ R12, BX")
	for i := range amxByteRows {
		f.op("VADDPS (BX), Z%d, Z%d", amxResult+i, amxResult+i)
		f.op("ADDQ R14, BX")
	}
	f.label("store%s", suffix)
	for i := range amxByteRows {
		f.op("VMOVUPS Z%d, (R12)", amxResult+i)
		f.op("ADDQ R14, R12")
	}
}

func amxByteTail(f *file) {
	f.bytes(tileRelease(), "TILERELEASE")
	f.op("VZEROUPPER")
	f.op("RET")
}

// writeAMXWholeTile writes the micro-kernel for rows that have one scale: all steps of a block are collected in tiles,
// of four panels of x at a time, which outlast the latency of a product, and then of one. Registers: AX, SI, R11 and R13
// four panels of x, R8 their distance, BX the weight, R15 the steps left, or the panels to be scaled.
func writeAMXWholeTile(f *file, name string, affine bool) {
	amxByteHead(f, name, 64, affine)
	f.op("MOVQ %d(DI), AX", byteA)
	for _, panels := range []int{4, 1} {
		f.label("panels%d", panels)
		if panels == 4 {
			f.op("CMPQ %d(DI), $4", bytePanels)
			f.op("JLT panels1")
		} else {
			f.op("CMPQ %d(DI), $0", bytePanels)
			f.op("JEQ end")
		}

		f.op("MOVQ %d(DI), R8", byteAStep)
		if panels == 4 {
			f.op("LEAQ (AX)(R8*1), SI")
			f.op("LEAQ (SI)(R8*1), R11")
			f.op("LEAQ (R11)(R8*1), R13")
		}
		f.op("MOVQ %d(DI), BX", byteB)
		f.op("MOVQ %d(DI), R15", byteSteps)
		for t := range panels {
			f.bytes(tileZero(t), "TILEZERO T%d", t)
		}

		f.label("step%d", panels)
		f.bytes(tileLoad(7, rBX, rCX, 0), "TILELOADD T7")
		pointers := []struct {
			reg  int
			name string
		}{{rAX, "AX"}, {rSI, "SI"}, {rR11, "R11"}, {rR13, "R13"}}[:panels]
		for t, p := range pointers {
			x := 4 + t%3
			f.bytes(tileLoad(x, p.reg, rCX, 0), "TILELOADD T%d", x)
			f.bytes(tdpbssd(t, x, 7), "TDPBSSD T7, T%d, T%d", x, t)
		}
		for _, p := range pointers {
			f.op("ADDQ $%d, %s", tileBytes, p.name)
		}
		f.op("ADDQ $%d, BX", tileBytes)
		f.op("DECQ R15")
		f.op("JNZ step%d", panels)

		for t := range panels {
			f.bytes(tileStore(t, rDX, rCX, t*tileBytes), "TILESTORED T%d", t)
		}
		f.op("MOVQ %d(DI), R15", byteSteps)
		f.op("SHLQ $10, R15")
		f.op("SUBQ R15, AX")
		f.op("LEAQ (AX)(R8*%d), AX", panels)
		amxWholeScale(f, panels, affine)
		f.op("JMP panels%d", panels)
	}
	f.label("end")
	amxByteTail(f)
}

// amxWholeScale scales the integers of some panels and stores the results.
func amxWholeScale(f *file, panels int, affine bool) {
	f.op("SUBQ $%d, %d(DI)", panels, bytePanels)
	f.op("MOVQ $%d, R15", panels)
	f.label("scale%d", panels)
	amxBytePointers(f)
	for i := range amxByteRows {
		f.op("VPXORQ Z%d, Z%d, Z%d", amxResult+i, amxResult+i, amxResult+i)
	}
	amxByteScale(f, 0, affine)
	f.op("ADDQ $%d, DX", tileBytes)
	amxByteStore(f, fmt.Sprint(panels))
	f.op("MOVQ %d(DI), BX", byteXStep)
	for _, at := range []int{byteScale, byteSums} {
		f.op("ADDQ BX, %d(DI)", at)
	}
	f.op("DECQ R15")
	f.op("JNZ scale%d", panels)
	f.op("MOVQ %d(DI), DX", byteInts)
}

// writeQuantisedTilesAMX writes the tiles of quantised weights and rounded activations with AMX.
func writeQuantisedTilesAMX(f *file) {
	writeByteConfigs(f)
	writeAMXByteTile(f, "byteTile16AMX", 16, false)
	writeAMXByteTile(f, "byteTile32AMX", 32, false)
	writeAMXByteTile(f, "byteTile32AddAMX", 32, true)
	writeAMXWholeTile(f, "byteTileRowAMX", false)
	writeAMXWholeTile(f, "byteTileRowAddAMX", true)
}
