package main

import "fmt"

// tileBytes is the size of one AMX tile: 16 rows of 64 bytes.
const tileBytes = 1024

// product names one bfloat16 product of a step: a part of a times a part of b.
type product struct{ a, b int }

// writeAMX writes the tile kernels for one, three and six products per pair of operands.
func writeAMX(f *file) {
	f.doc("Eight tiles of 16 rows and 64 bytes: palette 1.")
	f.raw("DATA amxTiles<>+0(SB)/8, $1")
	f.raw("DATA amxTiles<>+8(SB)/8, $0")

	for i := range 4 {
		f.raw(fmt.Sprintf("DATA amxTiles<>+%d(SB)/8, $%s", 16+8*i,
			map[bool]string{true: "0x0040004000400040", false: "0"}[i < 2]))
	}

	f.raw("DATA amxTiles<>+48(SB)/8, $0x1010101010101010")
	f.raw("DATA amxTiles<>+56(SB)/8, $0")
	f.raw("GLOBL amxTiles<>(SB), RODATA|NOPTR, $64")

	writeAMXTile(f, "gemmAMX1", "a and b are bfloat16", []product{{0, 0}})
	writeAMXTile(f, "gemmAMX3", "a is three bfloat16 parts, b is bfloat16", []product{{0, 0}, {1, 0}, {2, 0}})
	writeAMXTile(f, "gemmAMX6", "a and b are three bfloat16 parts; products below 2^-24 of the first are left out",
		[]product{{0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 1}, {0, 2}})

	for _, parts := range []int{1, 3} {
		for _, halves := range []int{1, 2} {
			writeAMXDirect(f, fmt.Sprintf("directAMX%dx%d", parts, halves), parts, halves)
		}
	}

	writeAMXPeak(f, "peakAMX", "16 by 32 by 16", tdpbf16, "TDPBF16PS")
	writeAMXPeak(f, "peakAMXInt8", "16 by 64 by 16, of bytes", tdpbssd, "TDPBSSD")
}

// writeAMXTile writes one kernel for 32 rows and 32 columns: tiles 0 to 3 accumulate, 4 and 5 hold a, 6 and 7 hold b.
func writeAMXTile(f *file, name, what string, products []product) {
	f.doc(`func %s(t *tileArgs)

c[i][j] (+)= Σ_p a[i][p]·b[p][j] for 32 rows and 32 columns, t.k steps of 32 p, for each of t.panels panels of a; %s.
A step of a is two tiles [16 i][32 p] per part, a step of b two tiles [16 pairs of p][16 j][2] per part.
It assumes that t.k > 0 and t.panels > 0. Tile registers are configured and released inside.`, name, what)

	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-8")
	loadArgs(f)
	f.op("LEAQ amxTiles<>(SB), DI")
	f.bytes(loadTileConfig(rDI), "LDTILECFG (DI)")
	f.op("MOVQ R8, R15")
	f.op("MOVQ R9, R13")
	f.op("MOVQ $64, CX")
	f.label("panel")
	f.op("MOVQ AX, R8")
	f.op("MOVQ R15, BX")
	f.op("MOVQ R13, R9")
	f.op("LEAQ (DX)(SI*8), DI")
	f.op("LEAQ (DI)(SI*8), DI")
	amxLoadC(f)
	f.label("loop")

	parts := amxStep(f, products)
	f.op("ADDQ $%d, AX", parts.a*2*tileBytes)
	f.op("ADDQ $%d, BX", parts.b*2*tileBytes)
	f.op("DECQ R9")
	f.op("JNZ loop")
	for t, c := range amxC {
		f.bytes(tileStore(t, c.base, rSI, c.disp), "TILESTORED T%d", t)
	}

	f.op("LEAQ (DI)(SI*8), DX")
	f.op("LEAQ (DX)(SI*8), DX")
	f.op("LEAQ (R8)(R11*1), AX")
	f.op("DECQ R10")
	f.op("JNZ panel")
	f.bytes(tileRelease(), "TILERELEASE")
	f.op("RET")
}

// writeAMXPeak writes a kernel that measures the tiles: products without loads. Four accumulators outlast the
// latency.
func writeAMXPeak(f *file, name, shape string, multiply func(c, a, b int) []byte, mnemonic string) {
	f.doc(`func %s(n int)

n rounds of 4 independent products of tiles of zeros, %s. Tile registers are configured and released
inside.`, name, shape)
	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ n+0(FP), CX")
	f.op("LEAQ amxTiles<>(SB), DI")
	f.bytes(loadTileConfig(rDI), "LDTILECFG (DI)")
	for t := range 8 {
		f.bytes(tileZero(t), "TILEZERO T%d", t)
	}

	f.label("loop")
	for t := range amxC {
		f.bytes(multiply(t, 4+t/2, 6+t%2), "%s T%d, T%d, T%d", mnemonic, 6+t%2, 4+t/2, t)
	}

	f.op("DECQ CX")
	f.op("JNZ loop")
	f.bytes(tileRelease(), "TILERELEASE")
	f.op("RET")
}

// amxC says where the accumulating tiles lie: DX is the first row of c, DI the 16th.
var amxC = []struct{ base, disp int }{{rDX, 0}, {rDX, 64}, {rDI, 0}, {rDI, 64}}

func amxLoadC(f *file) {
	f.op("TESTQ R12, R12")
	f.op("JNZ load")
	for t := range amxC {
		f.bytes(tileZero(t), "TILEZERO T%d", t)
	}

	f.op("JMP loop")
	f.label("load")
	for t, c := range amxC {
		f.bytes(tileLoad(t, c.base, rSI, c.disp), "TILELOADD T%d", t)
	}
}

// amxStep emits the products of one step, loading a part only when it changes, and returns how many parts a and b have.
func amxStep(f *file, products []product) product {
	var parts product
	have := product{-1, -1}
	for _, p := range products {
		if p.b != have.b {
			amxLoad(f, 6, rBX, p.b)
		}
		if p.a != have.a {
			amxLoad(f, 4, rAX, p.a)
		}

		have = p
		parts = product{max(parts.a, p.a+1), max(parts.b, p.b+1)}
		for t := range 4 {
			f.bytes(tdpbf16(t, 4+t/2, 6+t%2), "TDPBF16PS T%d, T%d, T%d", 6+t%2, 4+t/2, t)
		}
	}

	return parts
}

func amxLoad(f *file, tile, base, part int) {
	for h := range 2 {
		f.bytes(tileLoad(tile+h, base, rCX, (part*2+h)*tileBytes), "TILELOADD T%d", tile+h)
	}
}

// writeAMXDirect writes a kernel that takes the weight as it lies in memory for the left operand. Registers: SI
// the stride of w, R15 three strides, CX the stride of the other tiles, AX and DI the tiles of w, BX those of
// x, R11 the first row of w, R12 the distance of the prefetches, R8 the tiles' start, R13 steps, R10 groups.
func writeAMXDirect(f *file, name string, parts, halves int) {
	f.doc(`func %s(d *directArgs)

out[j][i] (+)= Σ_p w[j][p]·x[i][p] for d.groups·32 rows j of w and %d rows i of x, d.steps steps of 32 p; x is packed in steps of
%d parts of two tiles [16 pairs of p][16 i][2]; a row of out has 32 floats.
It assumes that d.steps > 0 and d.groups > 0. Tile registers are configured and released inside.`, name, halves*16,
		parts)

	f.raw("TEXT ·" + name + "(SB), NOSPLIT, $0-8")
	f.op("MOVQ d+0(FP), DI")
	// w, x, out, stride, steps, groups, prefetch
	for i, r := range []string{"R11", "R8", "DX", "SI", "R13", "R10", "R12"} {
		f.op("MOVQ %d(DI), %s", i*8, r)
	}

	f.op("LEAQ amxTiles<>(SB), DI")
	f.bytes(loadTileConfig(rDI), "LDTILECFG (DI)")
	f.op("LEAQ (SI)(SI*2), R15")
	f.label("group")
	f.op("MOVQ R11, AX")
	f.op("LEAQ (AX)(SI*8), DI")
	f.op("LEAQ (DI)(SI*8), DI")
	f.op("LEAQ (DI)(SI*8), R11")
	f.op("LEAQ (R11)(SI*8), R11")
	f.op("MOVQ R8, BX")
	f.op("MOVQ R13, R9")
	f.op("MOVQ $64, CX")
	f.op("MOVQ d+0(FP), R14")
	f.op("CMPQ 56(R14), $0")
	f.op("JNE load")
	directTiles(halves, func(t, _ int) { f.bytes(tileZero(t), "TILEZERO T%d", t) })
	f.op("JMP loop")
	f.label("load")
	f.op("MOVQ $128, CX")
	directTiles(halves, func(t, at int) { f.bytes(tileLoad(t, rDX, rCX, at), "TILELOADD T%d", t) })
	f.op("MOVQ $64, CX")
	f.label("loop")
	f.bytes(tileLoad(4, rAX, rSI, 0), "TILELOADD T4")
	f.bytes(tileLoad(5, rDI, rSI, 0), "TILELOADD T5")

	for p := range parts {
		for h := range halves {
			b := 6 + (p*halves+h)%2
			f.bytes(tileLoad(b, rBX, rCX, (p*2+h)*tileBytes), "TILELOADD T%d", b)
			f.bytes(tdpbf16(h, 4, b), "TDPBF16PS T%d, T4, T%d", b, h)
			f.bytes(tdpbf16(2+h, 5, b), "TDPBF16PS T%d, T5, T%d", b, 2+h)
		}
	}

	f.op("MOVQ AX, R14")
	f.op("ADDQ R12, R14")

	for range 8 {
		for _, index := range []string{"", "(SI*1)", "(SI*2)", "(R15*1)"} {
			f.op("PREFETCHT1 (R14)%s", index)
		}
		f.op("LEAQ (R14)(SI*4), R14")
	}

	f.op("ADDQ $64, AX")
	f.op("ADDQ $64, DI")
	f.op("ADDQ $%d, BX", parts*2*tileBytes)
	f.op("DECQ R9")
	f.op("JNZ loop")
	f.op("MOVQ $128, CX")
	directTiles(halves, func(t, at int) { f.bytes(tileStore(t, rDX, rCX, at), "TILESTORED T%d", t) })
	f.op("ADDQ $%d, DX", 32*32*4)
	f.op("DECQ R10")
	f.op("JNZ group")
	f.bytes(tileRelease(), "TILERELEASE")
	f.op("RET")
}

// directTiles calls f for every accumulating tile of a direct kernel, with its place in a group of out.
func directTiles(halves int, f func(tile, at int)) {
	for t := range 4 {
		if t%2 < halves {
			f(t, t/2*16*128+t%2*64)
		}
	}
}
