package main

import (
	"fmt"
	"strings"
)

// kernel is a function that is written here. Its code is in values, like that of lowering.
type kernel struct {
	name, doc   string
	declaration string
	write       func(l *lowering)
}

const (
	tileDoc   = "multiplies 6×16 tiles of bytes with SDOT; see byteTileArgs."
	quadsDoc  = "makes panelQuads of panelPairs, in their place, for n units of four elements."
	matrixDoc = "multiplies 6×16 tiles of bytes with SMMLA; see byteTileArgs."
	eightsDoc = "rows of 64-bit units, two rows at a time; see packArgs, whose columns are twice as wide and half as many."
)

// own are the files that are written here.
var own = map[string][]kernel{
	"kernels/cpu/attention_neon_arm64.s": {
		{
			"laneTileNEON", "multiplies rows of keys or values by 24 queries, one to a lane; see laneTileGo.",
			"func laneTileNEON(dst, a, b, carry []float32, rows, k, row, step int)", laneTile,
		},
	},
	"kernels/cpu/quantisedtiles_dot_arm64.s": {
		{"byteTile32Dot", tileDoc, "func byteTile32Dot(t *byteTileArgs)", byteTile(8, false)},
		{"byteTile32AddDot", tileDoc, "func byteTile32AddDot(t *byteTileArgs)", byteTile(8, true)},
		{"byteTile16Dot", tileDoc, "func byteTile16Dot(t *byteTileArgs)", byteTile(4, false)},
	},
	"kernels/cpu/quantisedtiles_i8mm_arm64.s": {
		{"byteTile32I8MM", matrixDoc, "func byteTile32I8MM(t *byteTileArgs)", matrixTile(4, false)},
		{"byteTile32AddI8MM", matrixDoc, "func byteTile32AddI8MM(t *byteTileArgs)", matrixTile(4, true)},
		{"byteTile16I8MM", matrixDoc, "func byteTile16I8MM(t *byteTileArgs)", matrixTile(2, false)},
		{"packEights6NEON", "transposes 6 " + eightsDoc, "func packEights6NEON(p *packArgs)", packEights(6)},
		{"packEights8NEON", "transposes 8 " + eightsDoc, "func packEights8NEON(p *packArgs)", packEights(8)},
	},
	"kernels/cpu/gemm_neon_arm64.s": {
		{
			"gemmF32NEON", "multiplies 12×16 tiles; see portableTile for the loop.", "func gemmF32NEON(t *tileArgs)",
			gemm("fmlae.4s", 16),
		},
		{
			"gemmPairDot", "multiplies 12×32 tiles of bfloat16 pairs with BFDOT.", "func gemmPairDot(t *tileArgs)",
			gemm("bfdote.4s", 32),
		},
		{
			"gemmQuadsBFMMLA", "multiplies 12×32 tiles of four bfloat16 with BFMMLA.", "func gemmQuadsBFMMLA(t *tileArgs)",
			gemmMatrix,
		},
		{"zipQuads12NEON", quadsDoc, "func zipQuads12NEON(p *uint32, n int)", zipQuads(12)},
		{"zipQuads32NEON", quadsDoc, "func zipQuads32NEON(p *uint32, n int)", zipQuads(32)},
		{
			"roundBF16Dot", "rounds floats to bfloat16; see splitArgs, of which it takes one part and no peak.",
			"func roundBF16Dot(s *splitArgs)", roundRows,
		},
		{"pairRowsDot", "pairs rows of bfloat16; see pairArgs.", "func pairRowsDot(p *pairArgs)", pairRows(false)},
		{
			"pairRoundedDot", "rounds rows of floats to bfloat16 and pairs them; see pairArgs, of which it takes no peak.",
			"func pairRoundedDot(p *pairArgs)", pairRows(true),
		},
		{"pack16NEON", "transposes 16 rows of 32-bit units; see packArgs.", "func pack16NEON(p *packArgs)", packRows(16)},
		{"pack12NEON", "transposes 12 rows of 32-bit units; see packArgs.", "func pack12NEON(p *packArgs)", packRows(12)},
		{"pack6NEON", "transposes 6 rows of 32-bit units; see packArgs.", "func pack6NEON(p *packArgs)", packRows(6)},
		{"peakFMANEON", "runs n rounds of 24 independent multiply-adds of 4 lanes.", "func peakFMANEON(n int)", peakFMA},
		{"peakDot", "runs n rounds of 24 independent sums of 16 products of bytes.", "func peakDot(n int)", peakDot},
		{
			"peakI8MM", "runs n rounds of 24 independent products of matrices of 2×8 and 8×2 bytes.",
			"func peakI8MM(n int)", peakI8MM,
		},
		{
			"readStreamNEON", "reads n bytes, a multiple of 1024 greater than 0, and returns a value that depends on them.",
			"func readStreamNEON(p *byte, n int) uint64", readStream,
		},
	},
}

// ownDeclarations are the Go declarations of what is written here.
var ownDeclarations = func() map[string]string {
	out := map[string]string{}
	for _, list := range own {
		for _, k := range list {
			out[k.name] = fmt.Sprintf("// %s %s\n//\n//go:noescape\n%s", k.name, k.doc, k.declaration)
		}
	}
	return out
}()

// writeOwn is the text of one of these files.
func writeOwn(list []kernel) (string, error) {
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(header, "\n"))
	for _, k := range list {
		f := &function{name: k.name}
		l := newLowering(f, &source{}, &pool{})
		l.code = append(l.code, ins{label: "start"})
		k.write(l)
		code, err := allocate(l.code)
		if err != nil {
			return "", fmt.Errorf("%s: %w", k.name, err)
		}
		frame := fmt.Sprintf("$0-%d", argumentBytes(k.declaration))
		writeFunction(&b, "// "+k.declaration+"\n", k.name, frame, code[1:], nil)
	}
	return b.String(), nil
}

// argumentBytes is the size of the parameters and results of a declaration, whose types are pointers, integers and slices.
func argumentBytes(declaration string) int {
	_, list, _ := strings.Cut(declaration, "(")
	list, result, _ := strings.Cut(list, ")")
	size, word := 0, 8
	parameters := strings.Split(list, ", ")
	for i := len(parameters) - 1; i >= 0; i-- { // a type holds for the names before it
		if _, typ, ok := strings.Cut(parameters[i], " "); ok {
			word = 8
			if strings.HasPrefix(typ, "[]") {
				word = 24
			}
		}
		size += word
	}
	if result != "" {
		size += 8
	}
	return size
}

// do writes an operation on given values.
func (l *lowering) do(op string, i int, v ...int) { l.code = append(l.code, ins{op: op, v: v, i: i}) }

// mem writes an operation on memory.
func (l *lowering) mem(op string, reg, off int, v ...int) {
	l.code = append(l.code, ins{op: op, v: v, x: reg, i: off})
}

func (l *lowering) label(s string) { l.code = append(l.code, ins{label: s}) }

// branch goes to a label on a condition, or always.
func (l *lowering) branch(cond, to string) {
	l.code = append(l.code, ins{text: "B" + cond + " " + to, jump: to, always: cond == ""})
}

// stream is consecutive registers of memory that are loaded four at a time when the first of them is asked for; the
// address moves on with every load.
type stream struct {
	l      *lowering
	reg    int
	left   int // registers not loaded yet
	loaded []int
}

// next is the next register of the stream.
func (s *stream) next() int {
	if len(s.loaded) == 0 {
		n := min(4, s.left)
		s.loaded = s.l.some(n)
		op := map[int]string{2: "ld1x2.q", 4: "ld1x4.q"}[n]
		s.l.code = append(s.l.code, ins{op: op, v: s.loaded, x: s.reg})
		s.left -= n
	}
	v := s.loaded[0]
	s.loaded = s.loaded[1:]
	return v
}

// fourBy loads four registers in a row and moves the address on by what another register says.
func (l *lowering) fourBy(reg, by int) []int {
	v := l.some(4)
	l.code = append(l.code, ins{op: "ld1x4m.q", v: v, x: reg, m: by})
	return v
}

func (l *lowering) ret() { l.code = append(l.code, ins{text: "RET", always: true}) }

// some returns n new values.
func (l *lowering) some(n int) []int {
	v := make([]int, n)
	for i := range v {
		v[i] = l.fresh()
	}
	return v
}

// args loads the first words of a structure of arguments at R7 into registers.
func (l *lowering) args(name string, regs ...int) {
	l.say("MOVD %s+0(FP), R7", name)
	for i, r := range regs {
		if r >= 0 {
			l.say("MOVD %d(R7), R%d", 8*i, r)
		}
	}
}

// gemm is a micro-kernel: c[i][j] (+)= Σ_p a[p][i]·b[p][j] for 12 rows and some columns, eight at a time. 24 of 32
// registers are sums; a step of k loads two registers of b and three of a, whose elements multiply by themselves. Four
// steps are written out. A unit of k is a float32, or a pair of bfloat16 for BFDOT.
func gemm(op string, cols int) func(l *lowering) {
	return tileOfFloats(floatTile{
		cols: cols, a: 48, b: 4 * cols,
		four: func(l *lowering, acc []int) {
			for s := range 2 {
				gemmPair(l, op, acc, 96*s, 8*cols*s, 4*cols)
			}
		},
		one: func(l *lowering, acc []int) { gemmStep(l, op, acc) },
	})
}

// gemmMatrix is gemm with BFMMLA, which multiplies four elements of each of two rows by four of each of two columns: a
// unit of k is four bfloat16, a register of sums has two rows by two columns until it is stored. One instruction adds
// what two of BFDOT do, in their order (Arm, "Arm Architecture Reference Manual", BFMMLA with FPCR.EBF 0), and so its
// sums are the same bits.
func gemmMatrix(l *lowering) {
	const rows = 6 // registers of two
	steps := func(n int) func(l *lowering, acc []int) {
		return func(l *lowering, acc []int) {
			a := &stream{l: l, reg: 9, left: rows * n}
			for range n {
				w := l.fourBy(10, 14)
				for i := range rows {
					x := a.next()
					for v := range w {
						l.do("bfmmla.4s", 0, acc[4*i+v], x, w[v])
					}
				}
			}
		}
	}
	const pitch = 256
	l.say("MOVD $%d, R14", pitch)
	tileOfFloats(floatTile{cols: 32, moves: true, wide: true, four: steps(4), one: steps(1), turn: matrixRows})(l)
}

// floatTile is what differs between the micro-kernels on floats.
type floatTile struct {
	cols      int
	a, b      int  // bytes of a step in the panels
	moves     bool // loads move on in the panels by themselves
	wide      bool // eight columns of a panel are 64 bytes, not 32
	four, one func(l *lowering, acc []int)
	turn      func(l *lowering, acc []int) []int // sums as rows; nil where they are
}

// tileOfFloats is the frame of the micro-kernels on floats.
//
// R0 a, R1 b, R2 c, R3 k, R4 ldc, R5 panels, R6 the step of a, R8 acc, R13 the bytes of the columns before.
func tileOfFloats(t floatTile) func(l *lowering) {
	const rows = 12
	return func(l *lowering) {
		l.args("t", 0, 1, 2, 3, 4, 5, 6, 8)
		acc := l.some(2 * rows)
		advance := func(n int) {
			if t.moves {
				return
			}
			l.say("ADD $%d, R9, R9", t.a*n)
			l.say("ADD $%d, R10, R10", t.b*n)
		}

		l.label("panel")
		l.say("MOVD ZR, R13")
		l.label("columns")
		for _, r := range acc {
			l.do("movi0", 0, r)
		}
		l.say("MOVD R0, R9")
		if t.wide {
			l.say("ADD R13<<1, R1, R10")
		} else {
			l.say("ADD R13, R1, R10")
		}
		l.say("ADD R13, R2, R12")
		for range rows {
			l.say("PRFM (R12), PLDL1KEEP")
			l.say("ADD R4, R12, R12")
		}
		l.say("SUBS $4, R3, R11")
		l.branch("LT", "rest")
		l.label("four")
		l.say("PRFM 768(R9), PLDL1KEEP")
		t.four(l, acc)
		advance(4)
		l.say("SUBS $4, R11, R11")
		l.branch("GE", "four")
		l.label("rest")
		l.say("ADDS $4, R11, R11")
		l.branch("EQ", "sums")
		l.label("one")
		t.one(l, acc)
		advance(1)
		l.say("SUBS $1, R11, R11")
		l.branch("NE", "one")

		l.label("sums")
		if t.turn != nil {
			acc = t.turn(l, acc)
		}
		l.say("ADD R13, R2, R12")
		l.code = append(l.code, ins{text: "CBZ R8, store", jump: "store"})
		for i := range rows {
			lo, hi := l.fresh(), l.fresh()
			l.mem("ldp.q", 12, 0, lo, hi)
			l.do("fadd.4s", 0, acc[2*i], lo, acc[2*i])
			l.do("fadd.4s", 0, acc[2*i+1], hi, acc[2*i+1])
			l.say("ADD R4, R12, R12")
		}
		l.say("ADD R13, R2, R12")
		l.label("store")
		for i := range rows {
			l.mem("stp.q", 12, 0, acc[2*i], acc[2*i+1])
			l.say("ADD R4, R12, R12")
		}
		l.say("ADD $32, R13, R13")
		l.say("CMP $%d, R13", 4*t.cols)
		l.branch("NE", "columns")
		l.say("SUB R13, R12, R2") // past the last row, its last eight columns on
		l.say("ADD $32, R2, R2")
		l.say("ADD R6, R0, R0")
		l.say("SUBS $1, R5, R5")
		l.branch("NE", "panel")
		l.ret()
	}
}

// zipQuads makes units of four bfloat16 of two rows of pairs that follow each other, n times. R0 p, R1 n.
func zipQuads(rows int) func(l *lowering) {
	return func(l *lowering) {
		l.say("MOVD p+0(FP), R0")
		l.say("MOVD n+8(FP), R1")
		l.label("unit")
		pairs := l.some(rows / 2)
		for i := 0; i < len(pairs); i += 2 {
			l.mem("ldp.q", 0, 16*i, pairs[i], pairs[i+1])
		}
		for i := range rows / 4 {
			x, y := pairs[i], pairs[rows/4+i]
			l.mem("stp.q", 0, 32*i, l.e("zip1.4s", x, y), l.e("zip2.4s", x, y))
		}
		l.say("ADD $%d, R0, R0", 8*rows)
		l.say("SUBS $1, R1, R1")
		l.branch("NE", "unit")
		l.ret()
	}
}

// gemmStep is a step of gemm at R9 and R10.
func gemmStep(l *lowering, op string, acc []int) {
	x, w := l.some(3), l.some(2)
	l.mem("ldp.q", 9, 0, x[0], x[1])
	l.mem("ldp.q", 10, 0, w[0], w[1])
	l.mem("ldr.q", 9, 32, x[2])
	gemmProducts(l, op, acc, x, w)
}

// gemmPair is two steps at offsets from R9 and R10, whose registers are all loaded in pairs: the first one's last comes
// with the second one's first.
func gemmPair(l *lowering, op string, acc []int, a, b, pitch int) {
	x, w := l.some(6), l.some(4)
	l.mem("ldp.q", 9, a, x[0], x[1])
	l.mem("ldp.q", 10, b, w[0], w[1])
	l.mem("ldp.q", 9, a+32, x[2], x[3])
	gemmProducts(l, op, acc, x[:3], w[:2])
	l.mem("ldp.q", 10, b+pitch, w[2], w[3])
	l.mem("ldp.q", 9, a+64, x[4], x[5])
	gemmProducts(l, op, acc, x[3:], w[2:])
}

func gemmProducts(l *lowering, op string, acc, x, w []int) {
	for i := range 12 {
		for v := range 2 {
			l.do(op, i%4, acc[2*i+v], w[v], x[i/4])
		}
	}
}

// roundRows writes blocks of 32 floats as bfloat16: dst + i·step for block i. R0 dst, R1 src, R2 n, R3 step.
func roundRows(l *lowering) {
	l.args("s", 0, 1, 2, 3)
	l.label("block")
	v := halves(l, 1)
	l.mem("stp.q", 0, 0, v[0], v[1])
	l.mem("stp.q", 0, 32, v[2], v[3])
	l.say("ADD $128, R1, R1")
	l.say("ADD R3, R0, R0")
	l.say("SUBS $1, R2, R2")
	l.branch("NE", "block")
	l.ret()
}

// halves loads 32 floats as bfloat16.
func halves(l *lowering, reg int) []int {
	var out []int
	for i := range 4 {
		lo, hi := l.fresh(), l.fresh()
		l.mem("ldp.q", reg, 32*i, lo, hi)
		out = append(out, l.e("bfcvtn2.8h", l.e("bfcvtn.4h", lo), hi))
	}
	return out
}

// pairRows interleaves rows of bfloat16, or of floats that are rounded; see pairArgs. R0 dst, R1 src, R2 n, R3 step, R4
// pitch, R5 half, R8 stride.
func pairRows(rounded bool) func(l *lowering) {
	row := func(l *lowering, reg int) []int {
		if rounded {
			return halves(l, reg)
		}
		v := l.some(4)
		l.mem("ldp.q", reg, 0, v[0], v[1])
		l.mem("ldp.q", reg, 32, v[2], v[3])
		return v
	}
	return func(l *lowering) {
		l.args("p", 0, 1, 2, 3, 4, 5, -1, 8)
		l.label("block")
		l.say("MOVD R0, R9")
		l.say("MOVD $16, R10")
		l.label("pair")
		l.say("ADD R8, R1, R11")
		even, odd := row(l, 1), row(l, 11)
		l.say("ADD R5, R9, R12")
		for i := range 4 {
			reg := []int{9, 9, 12, 12}[i]
			l.mem("stp.q", reg, 32*(i%2), l.e("zip1.8h", even[i], odd[i]), l.e("zip2.8h", even[i], odd[i]))
		}
		l.say("ADD R8, R11, R1")
		l.say("ADD R4, R9, R9")
		l.say("SUBS $1, R10, R10")
		l.branch("NE", "pair")
		l.say("ADD R3, R0, R0")
		l.say("SUBS $1, R2, R2")
		l.branch("NE", "block")
		l.ret()
	}
}

// packRows turns some rows of 32-bit units into columns: dst[q·step + c·pitch + i] = src[i·stride + c] for 16 columns c
// and n blocks q. R0 dst, R1 src, R2 n, R3 step, R4 pitch, R5 stride.
func packRows(rows int) func(l *lowering) {
	return func(l *lowering) {
		l.args("p", 0, 1, 2, 3, 4, 5)
		l.label("block")
		l.say("MOVD R1, R9")
		for i := 0; i < rows; i += 4 {
			packGroup(l, i, min(4, rows-i))
		}
		l.say("ADD $64, R1, R1")
		l.say("ADD R3, R0, R0")
		l.say("SUBS $1, R2, R2")
		l.branch("NE", "block")
		l.ret()
	}
}

// packGroup turns four rows, or two, from R9 on, whose columns begin with place first.
func packGroup(l *lowering, first, rows int) {
	var row [4][4]int
	for r := range rows {
		for c := 0; c < 4; c += 2 {
			row[r][c], row[r][c+1] = l.fresh(), l.fresh()
			l.mem("ldp.q", 9, 16*c, row[r][c], row[r][c+1])
		}
		l.say("ADD R5, R9, R9")
	}

	l.say("ADD $%d, R0, R10", 4*first)
	put := func(op string, v int) {
		l.mem(op, 10, 0, v)
		l.say("ADD R4, R10, R10")
	}
	for c := range 4 {
		if rows == 2 {
			for _, op := range []string{"zip1.4s", "zip2.4s"} {
				v := l.e(op, row[0][c], row[1][c])
				put("str.d", v)
				put("str.d", l.ei("dup.2d", 1, 0, v))
			}
			continue
		}

		a, b := l.e("zip1.4s", row[0][c], row[2][c]), l.e("zip2.4s", row[0][c], row[2][c])
		x, y := l.e("zip1.4s", row[1][c], row[3][c]), l.e("zip2.4s", row[1][c], row[3][c])
		put("str.q", l.e("zip1.4s", a, x))
		put("str.q", l.e("zip2.4s", a, x))
		put("str.q", l.e("zip1.4s", b, y))
		put("str.q", l.e("zip2.4s", b, y))
	}
}

// byteTile is a micro-kernel on bytes: c[i][j] (+)= Σ_g x[i][g]·mul[g][j]·(Σ_p a[p][i]·b[p][j]), with sums[i][g]·add[g][j]
// where it is affine, for 6 rows and 16 columns, eight at a time: 12 registers are results, 12 the integers of a group,
// of which quads times four elements make a step. See byteTileArgs.
func byteTile(quads int, affine bool) func(l *lowering) {
	return tileOfBytes(byteTileParts{
		b: 64 * quads,
		step: func(l *lowering, sum []int) {
			a := &stream{l: l, reg: 12, left: tileRows * quads / 4}
			x := 0
			for q := range quads {
				w := l.some(2)
				l.mem("ldp.q", 13, 64*q, w[0], w[1])
				for i := range tileRows {
					element := (tileRows*q + i) % 4
					if element == 0 {
						x = a.next()
					}
					for v := range w {
						l.do("sdote.4s", element, sum[2*i+v], w[v], x)
					}
				}
			}
		},
		scale: func(l *lowering, res, sum []int) { byteScale(l, res, sum, affine) },
	})
}

// matrixTile is byteTile with SMMLA, which multiplies eight codes of each of two rows by eight of each of two columns:
// a register of results or integers has two rows by two columns until it is stored, one of codes eight of two rows.
// Panels are packed in eights, of which a step has some.
func matrixTile(eights int, affine bool) func(l *lowering) {
	tile := tileOfBytes(byteTileParts{
		wide: true,
		step: func(l *lowering, sum []int) {
			a := &stream{l: l, reg: 12, left: tileRows / 2 * eights}
			for range eights {
				w := l.fourBy(13, 16)
				for i := range tileRows / 2 {
					x := a.next()
					for v := range w {
						l.do("smmla.4s", 0, sum[4*i+v], x, w[v])
					}
				}
			}
		},
		scale: func(l *lowering, res, sum []int) { matrixScale(l, res, sum, affine) },
		turn:  matrixRows,
	})
	return func(l *lowering) {
		l.say("MOVD $128, R16") // the pitch of eights in a panel of 16 columns
		tile(l)
	}
}

// tileRows is the number of rows of a tile of bytes.
const tileRows = 6

// byteTileParts is what differs between the kernels on bytes.
type byteTileParts struct {
	b     int  // bytes of a step in a panel, or 0 if loads move on by themselves, as those of a do
	wide  bool // eight columns of a panel are 64 bytes of codes, not 32
	step  func(l *lowering, sum []int)
	scale func(l *lowering, res, sum []int)
	turn  func(l *lowering, res []int) []int // results as rows; nil where they are
}

// tileOfBytes is the frame of the kernels on bytes.
//
// R7 has the arguments, R0 a, R2 scale, R3 sums, R4 b, R5 mul, R6 add, R8 c, R9 ldc, R10 panels, R11 the bytes of the
// columns before; in a group R12 a, R13 b, R14 scale, R15 sums, R19 mul, R20 add, R21 groups, R22 steps.
func tileOfBytes(p byteTileParts) func(l *lowering) {
	return func(l *lowering) {
		l.args("t", 0, -1, 2, 3, 4, 5, 6, 8, 9, -1, 10)
		res, sum := l.some(2*tileRows), l.some(2*tileRows)
		l.label("panel")
		l.say("MOVD ZR, R11")
		l.label("half")
		l.say("MOVD R0, R12")
		if p.wide {
			l.say("ADD R11<<1, R4, R13")
		} else {
			l.say("ADD R11, R4, R13")
		}
		l.say("MOVD R2, R14")
		l.say("MOVD R3, R15")
		l.say("ADD R11, R5, R19")
		l.say("ADD R11, R6, R20")
		l.say("MOVD 72(R7), R21")
		for _, r := range res {
			l.do("movi0", 0, r)
		}

		l.label("group")
		for _, r := range sum {
			l.do("movi0", 0, r)
		}
		l.say("MOVD 112(R7), R22")
		l.label("step")
		p.step(l, sum)
		if p.b > 0 {
			l.say("ADD $%d, R13, R13", p.b)
		}
		l.say("SUBS $1, R22, R22")
		l.branch("NE", "step")

		p.scale(l, res, sum)
		l.say("ADD $%d, R14, R14", 4*tileRows)
		l.say("ADD $%d, R15, R15", 4*tileRows)
		l.say("ADD $64, R19, R19")
		l.say("ADD $64, R20, R20")
		l.say("SUBS $1, R21, R21")
		l.branch("NE", "group")
		rows := res
		if p.turn != nil {
			rows = p.turn(l, res)
		}
		byteStore(l, rows)
		l.say("ADD $32, R11, R11")
		l.say("CMP $64, R11")
		l.branch("NE", "half")

		l.say("MOVD 88(R7), R12")
		l.say("ADD R12, R0, R0")
		l.say("MOVD 96(R7), R12")
		l.say("ADD R12, R2, R2")
		l.say("ADD R12, R3, R3")
		l.say("MOVD R2, 16(R7)") // where the next call goes on
		l.say("MOVD R3, 24(R7)")
		l.say("MOVD $%d, R12", tileRows)
		l.say("MADD R12, R8, R9, R8")
		l.say("SUBS $1, R10, R10")
		l.branch("NE", "panel")
		l.ret()
	}
}

// matrixScale is byteScale for registers of two rows by two columns.
func matrixScale(l *lowering, res, sum []int, affine bool) {
	scale, mul := pairsOfRows(l, 14), pairsOfColumns(l, 19)
	for r := range res {
		l.do("fmla.4s", 0, res[r], l.e("fmul.4s", l.e("scvtf.4s", sum[r]), scale[r/4]), mul[r%4])
	}
	if !affine {
		return
	}

	total, add := pairsOfRows(l, 15), pairsOfColumns(l, 20)
	for r := range res {
		l.do("fmla.4s", 0, res[r], add[r%4], total[r/4])
	}
}

// pairsOfRows loads six values, each of them twice in a row: two to a register.
func pairsOfRows(l *lowering, reg int) []int {
	v := l.some(2)
	l.mem("ldr.q", reg, 0, v[0])
	l.mem("ldr.d", reg, 16, v[1])
	return []int{l.e("zip1.4s", v[0], v[0]), l.e("zip2.4s", v[0], v[0]), l.e("zip1.4s", v[1], v[1])}
}

// pairsOfColumns loads eight values, two to a register, which has them twice.
func pairsOfColumns(l *lowering, reg int) []int {
	v := l.some(2)
	l.mem("ldp.q", reg, 0, v[0], v[1])
	return []int{
		l.ei("dup.2d", 0, 0, v[0]), l.ei("dup.2d", 1, 0, v[0]), l.ei("dup.2d", 0, 0, v[1]), l.ei("dup.2d", 1, 0, v[1]),
	}
}

// matrixRows turns registers of two rows by two columns, four to eight columns, into rows.
func matrixRows(l *lowering, res []int) []int {
	var rows []int
	for i := 0; i < len(res); i += 4 {
		for _, op := range []string{"zip1.2d", "zip2.2d"} {
			rows = append(rows, l.e(op, res[i], res[i+1]), l.e(op, res[i+2], res[i+3]))
		}
	}
	return rows
}

// packEights turns rows of 64-bit units into columns: dst[q·step + c·pitch + i] = src[i·stride + c] for 8 columns c and
// n blocks q. R0 dst, R1 src, R2 n, R3 step, R4 pitch, R5 stride.
func packEights(rows int) func(l *lowering) {
	return func(l *lowering) {
		l.args("p", 0, 1, 2, 3, 4, 5)
		l.label("block")
		l.say("MOVD R1, R9")
		for i := 0; i < rows; i += 2 {
			l.say("ADD R5, R9, R11")
			var even, odd [4]int
			for c := 0; c < 4; c += 2 {
				even[c], even[c+1], odd[c], odd[c+1] = l.fresh(), l.fresh(), l.fresh(), l.fresh()
				l.mem("ldp.q", 9, 16*c, even[c], even[c+1])
				l.mem("ldp.q", 11, 16*c, odd[c], odd[c+1])
			}

			l.say("ADD $%d, R0, R10", 8*i)
			for c := range 4 {
				for _, op := range []string{"zip1.2d", "zip2.2d"} {
					l.mem("str.q", 10, 0, l.e(op, even[c], odd[c]))
					l.say("ADD R4, R10, R10")
				}
			}
			l.say("ADD R5, R11, R9")
		}
		l.say("ADD $64, R1, R1")
		l.say("ADD R3, R0, R0")
		l.say("SUBS $1, R2, R2")
		l.branch("NE", "block")
		l.ret()
	}
}

// byteScale adds the integers of a group, scaled, to the results.
func byteScale(l *lowering, res, sum []int, affine bool) {
	scale, mul := l.some(2), l.some(2)
	l.mem("ldr.q", 14, 0, scale[0])
	l.mem("ldr.d", 14, 16, scale[1])
	l.mem("ldp.q", 19, 0, mul[0], mul[1])
	for r := range res {
		i := r / 2
		l.do("fmla.4s", 0, res[r], l.ei("fmulx.4s", i%4, 0, l.e("scvtf.4s", sum[r]), scale[i/4]), mul[r%2])
	}
	if !affine {
		return
	}

	total, add := l.some(2), l.some(2)
	l.mem("ldr.q", 15, 0, total[0])
	l.mem("ldr.d", 15, 16, total[1])
	l.mem("ldp.q", 20, 0, add[0], add[1])
	for r := range res {
		i := r / 2
		l.do("fmlae.4s", i%4, res[r], add[r%2], total[i/4])
	}
}

// byteStore writes the results of eight columns, or adds them to what is there.
func byteStore(l *lowering, res []int) {
	l.say("ADD R11, R8, R12")
	l.say("MOVD 104(R7), R13")
	l.code = append(l.code, ins{text: "CBZ R13, store", jump: "store"})
	l.say("MOVD R12, R13")
	for i := 0; i < len(res); i += 2 {
		lo, hi := l.fresh(), l.fresh()
		l.mem("ldp.q", 13, 0, lo, hi)
		l.do("fadd.4s", 0, res[i], lo, res[i])
		l.do("fadd.4s", 0, res[i+1], hi, res[i+1])
		l.say("ADD R9, R13, R13")
	}
	l.label("store")
	for i := 0; i < len(res); i += 2 {
		l.mem("stp.q", 12, 0, res[i], res[i+1])
		l.say("ADD R9, R12, R12")
	}
}

func peakFMA(l *lowering) { peak(l, "fmla.4s") }
func peakDot(l *lowering) { peak(l, "sdot.4s") }

func peakI8MM(l *lowering) { peak(l, "smmla.4s") }

func peak(l *lowering, op string) {
	l.say("MOVD n+0(FP), R0")
	acc := l.some(24)
	for _, r := range acc {
		l.do("movi0", 0, r)
	}
	x, y := l.e("movi0"), l.e("movi0")
	l.label("loop")
	for _, r := range acc {
		l.do(op, 0, r, x, y)
	}
	l.say("SUBS $1, R0, R0")
	l.branch("NE", "loop")
	sum := acc[0]
	for _, r := range acc[1:] {
		sum = l.e("orr.16b", sum, r)
	}
	l.to("fmov.xd", sum, 0, 0) // or nothing would be computed
	l.ret()
}

func readStream(l *lowering) {
	l.say("MOVD p+0(FP), R0")
	l.say("MOVD n+8(FP), R1")
	sum := l.some(4)
	for _, s := range sum {
		l.do("movi0", 0, s)
	}
	l.label("loop")
	for i := range 8 {
		l.say("PRFM %d(R0), PLDL1KEEP", 2048+128*i)
	}
	for i := range 32 {
		lo, hi := l.fresh(), l.fresh()
		l.mem("ldp.q", 0, 32*i, lo, hi)
		l.do("eor.16b", 0, sum[i%2*2], sum[i%2*2], lo)
		l.do("eor.16b", 0, sum[i%2*2+1], sum[i%2*2+1], hi)
	}
	l.say("ADD $1024, R0, R0")
	l.say("SUBS $1024, R1, R1")
	l.branch("NE", "loop")
	t := l.e("eor.16b", l.e("eor.16b", sum[0], sum[1]), l.e("eor.16b", sum[2], sum[3]))
	l.to("fmov.xd", t, 2, 0)
	l.say("MOVD R2, ret+16(FP)")
	l.ret()
}
