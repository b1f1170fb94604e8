package main

import "fmt"

// The tiles with AVX2 compute what those with VNNI do, in the same order of float32 operations. Sums of products are
// collected in 16 bits as long as they fit, and then widened: sums of two products with codes of 4 bits take eight of
// them (15·127·2·8), of 5 bits four, of 6 bits two. Codes of 8 bits, and x with them, are packed as 16 bits.

// ymmTileRows is the rows of x of a tile; columns are 16. A tile is computed in parts of ymmPartRows rows, for which
// there are registers.
const (
	ymmTileRows = 6
	ymmPartRows = 3
)

// ymmTile is a kind of tile.
type ymmTile struct {
	name   string
	steps  int  // registers of codes of a group: four (or with wide two) elements of 8 columns each
	sum    int  // how many sums of two products fit in 16 bits; 0: products are sums of 32 bits at once
	affine bool // there are summands
	loop   bool // a group is t.steps times that
}

var ymmTiles = []ymmTile{
	{name: "byteTile4AVX2", steps: 8, sum: 8},
	{name: "byteTile4AddAVX2", steps: 8, sum: 8, affine: true},
	{name: "byteTile5AVX2", steps: 8, sum: 4},
	{name: "byteTile5AddAVX2", steps: 8, sum: 4, affine: true},
	{name: "byteTile6AVX2", steps: 4, sum: 2},
	{name: "byteTile8AVX2", steps: 16, loop: true},
	{name: "byteTile8AddAVX2", steps: 16, affine: true, loop: true},
}

// Registers of the tiles: 6 sums of a group, 6 of the result, two of the weight, x, and one for products.
const (
	ymmGroup   = 0
	ymmResult  = 6
	ymmWeight  = 12
	ymmX       = 14
	ymmProduct = 15
)

// write emits a tile. Registers: BX the weight, R13 x, CX, DX and R8 its offsets, scales and sums, R9 and R10 factors
// and summands; the frame has ones and the sums of a group's first half.
func (t ymmTile) write(f *file) {
	f.doc(`func %s(t *byteTileArgs)

c[i][j] (+)= Σ_g x[i][g]·mul[g][j]·(Σ_p a[p][i]·b[p][j])%s for %d rows and 16 columns, for each of t.panels panels; see
byteTileArgs.`, t.name, map[bool]string{true: " + sums[i][g]·add[g][j]"}[t.affine], ymmTileRows)
	f.raw(fmt.Sprintf("TEXT ·%s(SB), NOSPLIT, $%d-8", t.name, 32*(1+2*ymmPartRows)))
	f.op("MOVQ t+0(FP), DI")
	f.op("MOVQ %d(DI), R12", byteC)
	f.op("MOVQ %d(DI), SI", byteLdc)
	splat(f, "Y0", 0x0001000100010001)
	f.op("MOVQ %d(DI), AX", byteA)
	f.op("VMOVDQU Y0, (SP)")
	f.label("panel")
	for part := range ymmTileRows / ymmPartRows {
		t.part(f, part)
	}
	nextPanel(f)
}

// part computes some rows of a panel.
func (t ymmTile) part(f *file, part int) {
	for r := range 2 * ymmPartRows {
		f.op("VXORPS Y%d, Y%d, Y%d", ymmResult+r, ymmResult+r, ymmResult+r)
	}
	f.op("LEAQ %d(AX), R13", 4*ymmPartRows*part)
	tilePointers(f)

	f.label("group%d", part)
	t.products(f, part)
	t.scale(f, 4*ymmPartRows*part)
	for _, r := range []string{"CX", "DX", "R8"} {
		f.op("ADDQ $%d, %s", 4*ymmTileRows, r)
	}
	f.op("ADDQ $64, R9")
	f.op("ADDQ $64, R10")
	f.op("DECQ R11")
	f.op("JNZ group%d", part)

	f.op("CMPQ %d(DI), $0", byteAcc)
	f.op("JEQ store%d", part)
	f.op("MOVQ R12, BX")
	for i := range ymmPartRows {
		for v := range 2 {
			r := ymmResult + 2*i + v
			f.op("VADDPS %d(BX), Y%d, Y%d", 32*v, r, r)
		}
		f.op("ADDQ SI, BX")
	}
	f.label("store%d", part)
	for i := range ymmPartRows {
		for v := range 2 {
			f.op("VMOVUPS Y%d, %d(R12)", ymmResult+2*i+v, 32*v)
		}
		f.op("ADDQ SI, R12")
	}
}

// products leaves the integers of a group in its registers.
func (t ymmTile) products(f *file, part int) {
	if t.loop {
		for r := range 2 * ymmPartRows {
			f.op("VPXOR Y%d, Y%d, Y%d", ymmGroup+r, ymmGroup+r, ymmGroup+r)
		}
		f.op("MOVQ %d(DI), R14", byteSteps)
		f.label("step%d", part)
	}

	for s := range t.steps {
		for v := range 2 {
			f.op("VMOVDQU %d(BX), Y%d", 64*s+32*v, ymmWeight+v)
		}
		for i := range ymmPartRows {
			f.op("VPBROADCASTD %d(R13), Y%d", 4*(ymmTileRows*s+i), ymmX)
			for v := range 2 {
				t.multiply(f, ymmGroup+2*i+v, ymmWeight+v, s)
			}
		}
		if t.sum > 0 && s%t.sum == t.sum-1 {
			t.widen(f, s == t.sum-1)
		}
	}
	f.op("ADDQ $%d, BX", 64*t.steps)
	f.op("ADDQ $%d, R13", 4*ymmTileRows*t.steps)
	if t.loop {
		f.op("DECQ R14")
		f.op("JNZ step%d", part)
	}
}

// multiply adds the products of a register of the weight and x to a sum, or begins it with them.
func (t ymmTile) multiply(f *file, sum, w, s int) {
	switch {
	case t.sum == 0:
		f.op("VPMADDWD Y%d, Y%d, Y%d", ymmX, w, ymmProduct)
		f.op("VPADDD Y%d, Y%d, Y%d", ymmProduct, sum, sum)
	case s%t.sum == 0:
		f.op("VPMADDUBSW Y%d, Y%d, Y%d", ymmX, w, sum)
	default:
		f.op("VPMADDUBSW Y%d, Y%d, Y%d", ymmX, w, ymmProduct)
		f.op("VPADDW Y%d, Y%d, Y%d", ymmProduct, sum, sum)
	}
}

// widen makes the sums of a group 32 bits wide. Where there are two parts of it, the first waits in the frame.
func (t ymmTile) widen(f *file, first bool) {
	for r := range 2 * ymmPartRows {
		f.op("VPMADDWD (SP), Y%d, Y%d", ymmGroup+r, ymmGroup+r)
		switch {
		case t.sum == t.steps:
		case first:
			f.op("VMOVDQU Y%d, %d(SP)", ymmGroup+r, 32*(1+r))
		default:
			f.op("VPADDD %d(SP), Y%d, Y%d", 32*(1+r), ymmGroup+r, ymmGroup+r)
		}
	}
}

// scale adds the integers of a group, scaled, to the results; rows begin at so many bytes of those of a panel.
func (t ymmTile) scale(f *file, at int) {
	for i := range ymmPartRows {
		g := ymmGroup + 2*i
		if t.sum > 0 {
			f.op("VPBROADCASTD %d(CX), Y%d", at+4*i, ymmX)
			for v := range 2 {
				f.op("VPADDD Y%d, Y%d, Y%d", ymmX, g+v, g+v)
			}
		}
		f.op("VBROADCASTSS %d(DX), Y%d", at+4*i, ymmX)
		if t.affine {
			f.op("VBROADCASTSS %d(R8), Y%d", at+4*i, ymmProduct)
		}
		for v := range 2 {
			f.op("VCVTDQ2PS Y%d, Y%d", g+v, g+v)
			f.op("VMULPS Y%d, Y%d, Y%d", ymmX, g+v, g+v)
			f.op("VFMADD231PS %d(R9), Y%d, Y%d", 32*v, g+v, ymmResult+2*i+v)
			if t.affine {
				f.op("VFMADD231PS %d(R10), Y%d, Y%d", 32*v, ymmProduct, ymmResult+2*i+v)
			}
		}
	}
}

// writeWidenBytes writes the kernel that makes 16 bits of bytes.
func writeWidenBytes(f *file) {
	f.doc(`func widenBytesAVX2(dst *int16, src *int8, n int)

dst[i] = src[i] for n elements, a multiple of 32 greater than 0.`)
	f.raw("TEXT ·widenBytesAVX2(SB), NOSPLIT, $0-24")
	f.op("MOVQ dst+0(FP), DI")
	f.op("MOVQ src+8(FP), SI")
	f.op("MOVQ n+16(FP), CX")
	f.label("loop")
	for i := range 2 {
		f.op("VPMOVSXBW %d(SI), Y%d", 16*i, i)
		f.op("VMOVDQU Y%d, %d(DI)", i, 32*i)
	}
	f.op("ADDQ $32, SI")
	f.op("ADDQ $64, DI")
	f.op("SUBQ $32, CX")
	f.op("JNZ loop")
	f.op("VZEROUPPER")
	f.op("RET")
}

// writeQuantisedTiles writes the tiles of quantised weights and rounded activations with AVX2.
func writeQuantisedTiles(f *file) {
	for _, t := range ymmTiles {
		t.write(f)
	}
	writeWidenBytes(f)
}
