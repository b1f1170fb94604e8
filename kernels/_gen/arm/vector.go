package main

import (
	"fmt"
	"math/bits"
	"strings"
)

// plain lists the instructions that are one of Advanced SIMD: the operands of x86's are reversed in Go's syntax.
var plain = map[string]string{
	"VADDPS": "fadd.4s", "VSUBPS": "fsub.4s", "VMULPS": "fmul.4s", "VDIVPS": "fdiv.4s",
	"VADDPD": "fadd.2d", "VSUBPD": "fsub.2d", "VMULPD": "fmul.2d", "VDIVPD": "fdiv.2d",
	"VPADDD": "add.4s", "VPSUBD": "sub.4s", "VPADDQ": "add.2d", "VPSUBQ": "sub.2d", "VPADDB": "add.16b", "VPSUBB": "sub.16b",
	"VPADDW": "add.8h", "VPSUBW": "sub.8h", "VPMULLD": "mul.4s", "VPMULLW": "mul.8h",
	"VPMAXSD": "smax.4s", "VPMINSD": "smin.4s", "VPMAXUD": "umax.4s", "VPMINUD": "umin.4s", "VPMINUW": "umin.8h",
	"VPCMPGTD": "cmgt.4s", "VPCMPEQD": "cmeq.4s", "VPCMPEQW": "cmeq.8h", "VPCMPEQB": "cmeq.16b",
	"VANDPS": "and.16b", "VANDPD": "and.16b", "VPAND": "and.16b", "VORPS": "orr.16b", "VORPD": "orr.16b",
	"VPOR": "orr.16b", "VXORPS": "eor.16b", "VXORPD": "eor.16b", "VPXOR": "eor.16b",
	"VHADDPS": "faddp.4s", "VHADDPD": "faddp.2d", "VPHADDD": "addp.4s",
	"VUNPCKLPS": "zip1.4s", "VUNPCKHPS": "zip2.4s", "VUNPCKLPD": "zip1.2d", "VUNPCKHPD": "zip2.2d",
	"VPUNPCKLQDQ": "zip1.2d", "VPUNPCKHQDQ": "zip2.2d", "VPUNPCKLDQ": "zip1.4s", "VPUNPCKHDQ": "zip2.4s",
	"VPUNPCKLBW": "zip1.16b", "VPUNPCKHBW": "zip2.16b",
	"VADDSS": "fadd.s", "VSUBSS": "fsub.s", "VMULSS": "fmul.s", "VDIVSS": "fdiv.s",
	"VADDSD": "fadd.d", "VSUBSD": "fsub.d", "VMULSD": "fmul.d", "VDIVSD": "fdiv.d",
}

// unary lists those with one source.
var unary = map[string]string{
	"VSQRTPS": "fsqrt.4s", "VSQRTPD": "fsqrt.2d", "VCVTDQ2PS": "scvtf.4s", "VPABSB": "abs.16b", "VCVTPS2DQ": "fcvtns.4s",
}

// shifts lists those by a number of bits, to the left first.
var shifts = map[string]string{
	"VPSLLD": "shl.4s", "VPSLLQ": "shl.2d", "VPSLLW": "shl.8h", "VPSRLD": "ushr.4s", "VPSRLQ": "ushr.2d",
	"VPSRLW": "ushr.8h", "VPSRAD": "sshr.4s",
}

// vector lowers one instruction on vector registers.
func (l *lowering) vector(x line) {
	a := x.args
	d := a[len(a)-1]
	if clears(x) {
		v := l.e("movi0")
		if strings.HasPrefix(x.op, "VPCMPEQ") {
			v = l.e("mvni0")
		}
		l.set(d, v, v)
		return
	}

	if op, ok := plain[x.op]; ok {
		if scalar := strings.HasSuffix(x.op, "SS") || strings.HasSuffix(x.op, "SD"); scalar && !strings.HasPrefix(x.op, "VPM") {
			l.set(d, l.e(op, l.half(a[1].n, 0), l.scalar(a[0], x.op)), 0)
			return
		}
		l.halves(d, func(v []int) int {
			for i := range 2 {
				if p, ok := l.four[v[i]]; ok && x.op == "VPADDD" { // the sum begins with the other operand
					return l.e("sdot.4s", v[1-i], p[0], p[1])
				}
			}
			return l.e(op, v[1], v[0])
		}, a[0], a[1])
		if strings.HasPrefix(x.op, "VPCMP") {
			l.mask(d)
		}
		return
	}
	if op, ok := unary[x.op]; ok {
		l.halves(d, func(v []int) int {
			to := l.e(op, v[0])
			if x.op == "VPABSB" {
				l.magnitude[to] = v[0]
			}
			return to
		}, a[0])
		return
	}
	if op, ok := shifts[x.op]; ok {
		l.halves(d, func(v []int) int {
			if a[0].n == 0 {
				return v[0]
			}
			if w, ok := l.widened[v[0]]; ok && op == "shl.4s" && a[0].n == 16 { // bfloat16
				return l.e([]string{"shll.4s", "shll2.4s"}[w[1]], w[0])
			}
			return l.ei(op, a[0].n, 0, v[0])
		}, a[1])
		return
	}
	if strings.HasPrefix(x.op, "VF") {
		l.fused(x)
		return
	}
	if !l.moves(x) && !l.floats(x) && !l.integers(x) && !l.shuffles(x) {
		panic(fmt.Sprintf("%s: no lowering of %s", l.f.name, x.text))
	}
}

// mask notes that the lanes of a register are all ones or zeros.
func (l *lowering) mask(d operand) {
	l.masks[l.half(d.n, 0)] = true
	if d.kind == 'y' {
		l.masks[l.half(d.n, 1)] = true
	}
}

// scalar is the lowest lane of an operand.
func (l *lowering) scalar(o operand, op string) int {
	if o.kind == 'x' {
		return l.half(o.n, 0)
	}
	size := 8
	if strings.HasSuffix(op, "S") {
		size = 4
	}
	v, _ := l.load(o, size)
	return v
}

// fused lowers multiply-adds: in Go's order of operands c, b, d, 231 is d + b·c and 213 is b·d + c.
func (l *lowering) fused(x line) {
	a := x.args
	d := a[2]
	arrangement := map[byte]string{'S': ".4s", 'D': ".2d"}[x.op[len(x.op)-1]]
	if x.op == "VFMADD231SS" || x.op == "VFMADD231SD" {
		op := map[string]string{"VFMADD231SS": "fmla.s0", "VFMADD231SD": "fmla.d0"}[x.op]
		l.set(d, l.e(op, l.half(d.n, 0), l.half(a[1].n, 0), l.scalar(a[0], x.op)), 0)
		return
	}

	form := strings.TrimSuffix(strings.TrimSuffix(x.op[2:], "PS"), "PD")
	l.halves(d, func(v []int) int {
		c, b, old := v[0], v[1], v[2]
		switch form {
		case "MADD231":
			return l.e("fmla"+arrangement, old, b, c)
		case "NMADD231":
			return l.e("fmls"+arrangement, old, b, c)
		case "MADD213":
			return l.e("fmla"+arrangement, c, b, old)
		case "NMADD213":
			return l.e("fmls"+arrangement, c, b, old)
		case "MSUB213":
			return l.e("fmla"+arrangement, l.e("fneg"+arrangement, c), b, old)
		case "MADDSUB213":
			return l.e("fmla.4s", l.e("eor.16b", c, l.constant(0x80000000, 0x80000000)), b, old)
		}
		panic("no lowering of " + x.text)
	}, a[0], a[1], d)
}

// moves lowers copies, loads and stores.
func (l *lowering) moves(x line) bool {
	a := x.args
	d := a[len(a)-1]
	switch x.op {
	case "VMOVUPS", "VMOVUPD", "VMOVAPS", "VMOVAPD", "VMOVDQU", "VMOVDQA":
		l.copy(a[0], d)
	case "VMOVSS", "VMOVD", "VMOVSD", "VMOVQ", "MOVQ", "MOVL", "MOVD", "MOVSS", "MOVSD":
		l.single128(x)
	case "VBROADCASTSS", "VPBROADCASTD", "VBROADCASTSD", "VPBROADCASTQ", "VPBROADCASTW":
		l.broadcast(x)
	case "VBROADCASTF128", "VBROADCASTI128":
		v, _ := l.load(a[0], 16)
		l.set(d, v, v)
	case "VMASKMOVPS":
		l.masked(x)
	case "VEXTRACTPS":
		l.code = append(l.code, ins{op: "st1.s", v: []int{l.half(a[1].n, 0)}, x: l.exact(d), i: a[0].n})
	case "VPINSRD":
		if a[1].kind == 'r' {
			l.set(d, l.insertGeneral(l.half(a[2].n, 0), a[1].n, a[0].n), 0)
			return true
		}
		to := l.e("mov.16b", l.half(a[2].n, 0))
		l.code = append(l.code, ins{op: "ld1.s", v: []int{to}, x: l.exact(a[1]), i: a[0].n})
		l.set(d, to, 0)
	case "VGATHERDPS":
		l.gather(x)
	case "VMOVMSKPS", "VPMOVMSKB":
		l.signs(x)
	case "VPTEST":
		if a[0] != a[1] {
			panic("VPTEST of two registers")
		}
		lo, hi := l.pair(a[0], a[0].kind)
		l.to("fmov.ws", l.e("umaxv.4s", l.e("orr.16b", lo, hi)), 17, 0)
		l.say("CMPW $0, R17")
	default:
		return false
	}
	return true
}

func (l *lowering) insertGeneral(v, reg, lane int) int {
	to := l.e("mov.16b", v)
	l.code = append(l.code, ins{op: "insg.s", v: []int{to}, x: reg, i: lane})
	return to
}

func (l *lowering) copy(from, to operand) {
	vector := func(o operand) bool { return o.kind == 'x' || o.kind == 'y' }
	size := map[byte]int{'x': 16, 'y': 32}
	switch {
	case vector(from) && vector(to):
		lo, hi := l.pair(from, to.kind)
		l.set(to, lo, hi)
	case vector(to):
		lo, hi := l.load(from, size[to.kind])
		l.set(to, lo, hi)
	default:
		lo, hi := l.pair(from, from.kind)
		l.store(to, size[from.kind], lo, hi)
	}
}

// single128 lowers moves of the lowest 4 or 8 bytes.
func (l *lowering) single128(x line) {
	a, d := x.args[0], x.args[1]
	size := 4
	if x.op == "VMOVQ" || x.op == "MOVQ" || x.op == "VMOVSD" || x.op == "MOVSD" {
		size = 8
	}
	switch {
	case a.kind == 'r':
		l.set(d, l.from(map[int]string{4: "fmov.sw", 8: "fmov.dx"}[size], a.n), 0)
	case d.kind == 'r':
		l.to(map[int]string{4: "fmov.ws", 8: "fmov.xd"}[size], l.half(a.n, 0), d.n, 0)
	case a.kind == 'x' && d.kind == 'x':
		l.set(d, l.e(map[int]string{4: "fmov.s", 8: "fmov.d"}[size], l.half(a.n, 0)), 0)
	case a.kind == 'x':
		l.store(d, size, l.half(a.n, 0), 0)
	default:
		v, _ := l.load(a, size)
		l.set(d, v, 0)
	}
}

func (l *lowering) broadcast(x line) {
	a, d := x.args[0], x.args[1]
	size, arrangement := 4, ".4s"
	switch x.op {
	case "VBROADCASTSD", "VPBROADCASTQ":
		size, arrangement = 8, ".2d"
	case "VPBROADCASTW":
		size, arrangement = 2, ".8h"
	}

	var v int
	switch {
	case a.kind == 'r':
		v = l.from("dupg"+arrangement, a.n)
	case a.kind == 'x' || a.kind == 'y':
		v = l.e("dup"+arrangement, l.half(a.n, 0))
	case a.kind == 's' && (size == 4 && l.src.four(a.name, a.off) || size == 8 && l.src.same(a.name, a.off, 1, 8)):
		v, _ = l.load(a, 16)
	case size == 2:
		l.say("MOVHU %s, R17", l.place(a))
		v = l.from("dupg.8h", 17)
	case a.kind == 'f':
		s, _ := l.load(a, size)
		v = l.e("dup"+arrangement, s)
	default:
		v = l.from("ld1r"+arrangement, l.exact(a))
	}
	l.set(d, v, v)
}

// masked lowers loads and stores of the first lanes, which a mask names. Nothing beyond them is touched.
func (l *lowering) masked(x line) {
	a := x.args
	m, loading := a[1], a[0].kind == 'm'
	mem := a[2]
	if loading {
		mem = a[0]
	} else {
		m = a[1]
	}

	lo, hi := l.pair(m, m.kind)
	if m.kind == 'x' {
		hi = -1
	}
	if l.counted != [2]int{lo, hi} {
		sum := lo
		if hi >= 0 {
			sum = l.e("add.4s", l.ones(lo), l.ones(hi))
		} else {
			sum = l.ones(lo)
		}
		l.to("fmov.ws", l.e("addv.4s", sum), 25, 0)
		l.say("NEGW R25, R25")
		l.counted = [2]int{lo, hi}
	}

	var v [2]int
	if loading {
		v = [2]int{l.e("movi0"), l.e("movi0")}
	} else {
		v[0], v[1] = l.pair(a[0], m.kind)
	}
	reg, off := l.address(mem)
	l.say("ADD $%d, R%d, R17", off, reg)
	l.firstLanes(v, m.kind == 'y', loading)
	if loading {
		l.set(a[2], v[0], v[1])
	}
}

// firstLanes loads or stores the first R25 lanes of one or two values at R17.
func (l *lowering) firstLanes(v [2]int, two, loading bool) {
	pre := map[bool]string{true: "ld", false: "st"}[loading]
	step := func(op string, v, i int) { l.code = append(l.code, ins{op: op, v: []int{v}, x: 17, i: i}) }
	test := func(bit int, zero bool, to string) {
		l.code = append(l.code, ins{text: fmt.Sprintf("TB%sZ $%d, R25, %s", map[bool]string{true: "", false: "N"}[zero], bit, to), jump: to})
	}
	done := l.newLabel("done")
	part := func(v int) {
		odd, last := l.newLabel("odd"), l.newLabel("last")
		test(1, true, odd)
		step(pre+"1p.d", v, 8)
		test(0, true, done)
		step(pre+"1.s", v, 2)
		l.code = append(l.code, ins{text: "B " + done, jump: done, always: true}, ins{label: odd})
		test(0, true, done)
		if loading {
			step("ldr.s", v, 0)
		} else {
			step("str.s", v, 0)
		}
		l.code = append(l.code, ins{text: "B " + done, jump: done, always: true}, ins{label: last})
	}

	few, full := l.newLabel("few"), l.newLabel("full")
	if two {
		test(3, false, full)
		test(2, true, few)
		step(pre+"1p.q", v[0], 16)
		part(v[1])
	} else {
		test(2, false, full)
	}
	l.code = append(l.code, ins{label: few})
	part(v[0])
	l.code = append(l.code, ins{label: full})
	if two {
		l.code = append(l.code, ins{op: pre + "p.q", v: []int{v[0], v[1]}, x: 17})
	} else {
		step(pre+"r.q", v[0], 0)
	}
	l.code = append(l.code, ins{label: done})
}

// gather loads lanes one by one. The mask is all ones.
func (l *lowering) gather(x line) {
	mem, d := x.args[1], x.args[2]
	var out [2]int
	for h := range 2 {
		index := l.half(mem.index-100, h)
		to := l.e("movi0")
		for i := range 4 {
			l.to("smov.s", index, 17, i)
			l.say("ADD R17%s, R%d, R17", shifted(mem.scale), mem.n)
			if mem.off != 0 {
				l.say("ADD $%d, R17, R17", mem.off)
			}
			l.code = append(l.code, ins{op: "ld1.s", v: []int{to}, x: 17, i: i})
		}
		out[h] = to
	}
	l.set(d, out[0], out[1])
}

// signs lowers the collection of sign bits: one bit per lane is kept where it belongs, and all are added.
func (l *lowering) signs(x line) {
	a, d := x.args[0], x.args[1]
	lo, hi := l.pair(a, a.kind)
	if x.op == "VPMOVMSKB" {
		c := l.constant(0x8040201008040201, 0x8040201008040201)
		s := l.e("addp.16b", l.e("and.16b", l.e("cmlt0.16b", lo), c), l.e("and.16b", l.e("cmlt0.16b", hi), c))
		s = l.e("addp.16b", s, s)
		l.to("fmov.ws", l.e("addp.16b", s, s), d.n, 0)
		return
	}

	weigh := func(v int, a, b uint64) int { return l.e("and.16b", l.ones(v), l.constant(a, b)) }
	s := weigh(lo, 0x0000000200000001, 0x0000000800000004)
	if a.kind == 'y' {
		s = l.e("orr.16b", s, weigh(hi, 0x0000002000000010, 0x0000008000000040))
	}
	l.to("fmov.ws", l.e("addv.4s", s), d.n, 0)
}

// ones fills lanes with their sign bit.
func (l *lowering) ones(v int) int {
	if l.masks[v] {
		return v
	}
	return l.e("cmlt0.4s", v)
}

// floats lowers comparisons, limits, roundings and conversions.
func (l *lowering) floats(x line) bool {
	a := x.args
	d := a[len(a)-1]
	switch x.op {
	case "VMAXPS", "VMINPS", "VMAXPD", "VMINPD": // of a NaN and a number, or of two zeros, the operand written first here
		arrangement := map[byte]string{'S': ".4s", 'D': ".2d"}[x.op[5]]
		l.halves(d, func(v []int) int {
			more, less := v[1], v[0]
			if x.op[:5] == "VMINP" {
				more, less = v[0], v[1]
			}
			return l.e("bsl.16b", l.e("fcmgt"+arrangement, more, less), v[1], v[0])
		}, a[0], a[1])
	case "VCMPPS", "VCMPPD":
		arrangement := map[byte]string{'S': ".4s", 'D': ".2d"}[x.op[5]]
		l.halves(d, func(v []int) int { return l.compared(a[0].n, v[1], v[0], arrangement) }, a[1], a[2])
		l.mask(d)
	case "VBLENDVPS", "VBLENDVPD", "VPBLENDVB":
		if x.op != "VBLENDVPS" {
			panic("no lowering of " + x.text)
		}
		l.halves(d, func(v []int) int { return l.e("bsl.16b", l.ones(v[0]), v[1], v[2]) }, a[0], a[1], a[2])
	case "VROUNDPS":
		op := map[int]string{0: "frintn.4s", 3: "frintz.4s", 8: "frintn.4s", 1: "frintm.4s"}[a[0].n]
		l.halves(d, func(v []int) int { return l.e(op, v[0]) }, a[1])
	case "VCVTTPS2DQ": // out of range is the lowest integer
		l.halves(d, func(v []int) int {
			limit := l.constant(0x4f0000004f000000, 0x4f0000004f000000) // 2^31
			inside := l.e("fcmgt.4s", limit, l.e("fabs.4s", v[0]))
			return l.e("bsl.16b", inside, l.e("fcvtzs.4s", v[0]), l.constant(0x8000000080000000, 0x8000000080000000))
		}, a[0])
	case "VCVTPS2PD":
		v := l.narrow(a[0], 16)
		l.set(d, l.e("fcvtl.2d", v), l.e("fcvtl2.2d", v))
	case "VCVTPD2PSY", "VCVTPD2PS":
		lo, hi := l.pair(a[0], 'y')
		l.set(d, l.e("fcvtn2.4s", l.e("fcvtn.2s", lo), hi), 0)
	case "VCVTPH2PS":
		if d.kind == 'x' {
			l.set(d, l.e("fcvtl.4s", l.narrow(a[0], 8)), 0)
			return true
		}
		v := l.narrow(a[0], 16)
		l.set(d, l.e("fcvtl.4s", v), l.e("fcvtl2.4s", v))
	case "VCVTPS2PH":
		lo, hi := l.pair(a[1], a[1].kind)
		v := l.e("fcvtn.4h", lo)
		if a[1].kind == 'y' {
			v = l.e("fcvtn2.8h", v, hi)
		}
		if d.kind == 'x' {
			l.set(d, v, 0)
		} else {
			l.store(d, map[byte]int{'x': 8, 'y': 16}[a[1].kind], v, 0)
		}
	case "VCVTSS2SD":
		l.set(d, l.e("fcvt.ds", l.scalar(a[0], "SS")), 0)
	case "VCVTSD2SS":
		l.set(d, l.e("fcvt.sd", l.scalar(a[0], "SD")), 0)
	default:
		return false
	}
	return true
}

// narrow is the source of a conversion to wider elements.
func (l *lowering) narrow(o operand, size int) int {
	if o.kind == 'x' || o.kind == 'y' {
		return l.half(o.n, 0)
	}
	v, _ := l.load(o, size)
	return v
}

// compared lowers a predicate of VCMPPS on a and b.
func (l *lowering) compared(predicate, a, b int, arrangement string) int {
	no := func(v int) int { return l.e("mvn.16b", v) }
	eq, ge, gt := "fcmeq"+arrangement, "fcmge"+arrangement, "fcmgt"+arrangement
	switch predicate {
	case 0:
		return l.e(eq, a, b)
	case 1, 17:
		return l.e(gt, b, a)
	case 2, 18:
		return l.e(ge, b, a)
	case 3:
		if a == b {
			return no(l.e(eq, a, a))
		}
		return no(l.e("and.16b", l.e(eq, a, a), l.e(eq, b, b)))
	case 4:
		return no(l.e(eq, a, b))
	case 5:
		return no(l.e(gt, b, a))
	case 6:
		return no(l.e(ge, b, a))
	case 7:
		return l.e("and.16b", l.e(eq, a, a), l.e(eq, b, b))
	case 9:
		return no(l.e(ge, a, b))
	case 10:
		return no(l.e(gt, a, b))
	case 13, 29:
		return l.e(ge, a, b)
	case 14, 30:
		return l.e(gt, a, b)
	}
	panic(fmt.Sprintf("no lowering of predicate %d", predicate))
}

// integers lowers operations on integers that are not one instruction.
func (l *lowering) integers(x line) bool {
	a := x.args
	d := a[len(a)-1]
	switch x.op {
	case "VPANDN", "VANDNPS", "VANDNPD":
		l.halves(d, func(v []int) int { return l.e("bic.16b", v[0], v[1]) }, a[0], a[1])
	case "VPSRLVD": // shifts are below 128, and 32 or more give 0
		l.halves(d, func(v []int) int { return l.e("ushl.4s", v[1], l.e("neg.4s", v[0])) }, a[0], a[1])
	case "VPSIGNB":
		l.halves(d, func(v []int) int {
			signed := l.e("bsl.16b", l.e("cmlt0.16b", v[0]), l.e("neg.16b", v[1]), v[1])
			to := l.e("bic.16b", signed, l.e("cmeq0.16b", v[0]))
			l.signed[to] = [2]int{v[1], v[0]}
			return to
		}, a[0], a[1])
	case "VPMADDWD":
		l.halves(d, func(v []int) int { return l.fourProducts(v[1], v[0]) }, a[0], a[1])
	case "VPMADDUBSW": // the bytes of the operand written second are unsigned
		l.halves(d, func(v []int) int {
			if l.dots {
				return l.twoProducts(v[1], v[0])
			}
			lo := l.e("mul.8h", l.e("uxtl.8h", v[1]), l.e("sxtl.8h", v[0]))
			hi := l.e("mul.8h", l.e("uxtl2.8h", v[1]), l.e("sxtl2.8h", v[0]))
			return l.e("sqadd.8h", l.e("uzp1.8h", lo, hi), l.e("uzp2.8h", lo, hi))
		}, a[0], a[1])
	case "VPACKSSDW", "VPACKUSDW", "VPACKSSWB":
		op := map[string][2]string{
			"VPACKSSDW": {"sqxtn.4h", "sqxtn2.8h"}, "VPACKUSDW": {"sqxtun.4h", "sqxtun2.8h"},
			"VPACKSSWB": {"sqxtn.8b", "sqxtn2.16b"},
		}[x.op]
		l.halves(d, func(v []int) int { return l.e(op[1], l.e(op[0], v[1]), v[0]) }, a[0], a[1])
	case "VPMOVZXWD", "VPMOVSXWD", "VPMOVZXBW", "VPMOVSXBW", "VPMOVSXDQ":
		s := map[byte]string{'Z': "u", 'S': "s"}[x.op[5]]
		to := map[string]string{"WD": ".4s", "BW": ".8h", "DQ": ".2d"}[x.op[7:]]
		v := l.narrow(a[0], 16)
		lo, hi := l.e(s+"xtl"+to, v), l.e(s+"xtl2"+to, v)
		if to == ".4s" {
			l.widened[lo], l.widened[hi] = [2]int{v, 0}, [2]int{v, 1}
		}
		l.set(d, lo, hi)
	case "VPMOVZXBD", "VPMOVSXBD":
		s := map[byte]string{'Z': "u", 'S': "s"}[x.op[5]]
		v := l.e(s+"xtl.8h", l.narrow(a[0], 8))
		l.set(d, l.e(s+"xtl.4s", v), l.e(s+"xtl2.4s", v))
	default:
		return false
	}
	return true
}

// twoProducts notes products of bytes that fourProducts adds up: where the first operand's are magnitudes while the
// second's have the signs, both are taken as they were before.
func (l *lowering) twoProducts(a, b int) int {
	if s, ok := l.signed[b]; ok && l.magnitude[a] == s[1] {
		a, b = s[1], s[0]
	}
	to := l.fresh()
	l.two[to] = [2]int{a, b}
	return to
}

// fourProducts adds products of 16-bit integers in pairs. After twoProducts the other operand is ones.
func (l *lowering) fourProducts(a, b int) int {
	if p, ok := l.two[a]; ok {
		to := l.e("sdot.4s", l.e("movi0"), p[0], p[1])
		l.four[to] = p
		return to
	}
	return l.e("addp.4s", l.e("smull.4s", a, b), l.e("smull2.4s", a, b))
}

// shuffles lowers what moves lanes.
func (l *lowering) shuffles(x line) bool {
	a := x.args
	d := a[len(a)-1]
	switch x.op {
	case "VEXTRACTF128", "VEXTRACTI128":
		lo, hi := l.pair(a[1], 'y')
		v := []int{lo, hi}[a[0].n]
		if d.kind == 'x' {
			l.set(d, v, 0)
		} else {
			l.store(d, 16, v, 0)
		}
	case "VINSERTF128", "VINSERTI128":
		v := l.narrow(a[1], 16)
		lo, hi := l.pair(a[2], 'y')
		if a[0].n == 0 {
			l.set(d, v, hi)
		} else {
			l.set(d, lo, v)
		}
	case "VPERM2F128", "VPERM2I128":
		b0, b1 := l.pair(a[1], 'y')
		a0, a1 := l.pair(a[2], 'y')
		from := []int{a0, a1, b0, b1}
		l.set(d, from[a[0].n&3], from[a[0].n>>4&3])
	case "VPERMQ":
		lo, hi := l.pair(a[1], 'y')
		if a[0].n != 0xd8 {
			panic("no lowering of " + x.text)
		}
		l.set(d, l.e("zip1.2d", lo, hi), l.e("zip2.2d", lo, hi))
	case "VPSHUFD", "VPERMILPS":
		l.halves(d, func(v []int) int { return l.lanes(v[0], v[0], a[0].n) }, a[1])
	case "VSHUFPS":
		l.halves(d, func(v []int) int { return l.lanes(v[1], v[0], a[0].n) }, a[1], a[2])
	case "VPERMILPD":
		if d.kind != 'x' || a[0].n != 1 {
			panic("no lowering of " + x.text)
		}
		l.halves(d, func(v []int) int { return l.ei("ext.16b", 8, 0, v[0], v[0]) }, a[1])
	case "VMOVSHDUP":
		l.halves(d, func(v []int) int { return l.e("trn2.4s", v[0], v[0]) }, a[0])
	case "VPSRLDQ":
		l.halves(d, func(v []int) int { return l.ei("ext.16b", a[0].n, 0, v[0], l.e("movi0")) }, a[1])
	case "VPSHUFB": // an index with the highest bit set gives 0; others count from 0 to 15
		l.halves(d, func(v []int) int {
			return l.e("tbl.16b", v[1], l.e("and.16b", v[0], l.constant(0x8f8f8f8f8f8f8f8f, 0x8f8f8f8f8f8f8f8f)))
		}, a[0], a[1])
	case "VPERMPS", "VPERMD":
		l.permute(x)
	case "VPBLENDW":
		l.halves(d, func(v []int) int {
			to := l.e("mov.16b", v[1])
			for m := uint(a[0].n); m != 0; m &= m - 1 {
				i := bits.TrailingZeros(m)
				l.code = append(l.code, ins{op: "ins.h", v: []int{to, v[0]}, i: i, j: i})
			}
			return to
		}, a[1], a[2])
	case "VPBLENDD":
		b0, b1 := l.pair(a[1], d.kind)
		a0, a1 := l.pair(a[2], d.kind)
		blend := func(a, b, m int) int {
			to := l.e("mov.16b", a)
			for i := range 4 {
				if m>>i&1 != 0 {
					l.code = append(l.code, ins{op: "ins.s", v: []int{to, b}, i: i, j: i})
				}
			}
			return to
		}
		l.set(d, blend(a0, b0, a[0].n&15), blend(a1, b1, a[0].n>>4))
	default:
		return false
	}
	return true
}

// lanes takes lanes of a and, above the second, of b, two bits of order each.
func (l *lowering) lanes(a, b, order int) int {
	switch order {
	case 0x88:
		return l.e("uzp1.4s", a, b)
	case 0xdd:
		return l.e("uzp2.4s", a, b)
	}
	if a == b {
		switch order {
		case 0x00, 0x55, 0xaa, 0xff:
			return l.ei("dup.4s", order&3, 0, a)
		case 0x4e:
			return l.ei("ext.16b", 8, 0, a, a)
		case 0xb1:
			return l.e("rev64.4s", a)
		case 0x44:
			return l.ei("dup.2d", 0, 0, a)
		case 0xee:
			return l.ei("dup.2d", 1, 0, a)
		}
	}

	to := l.ei("dup.4s", order&3, 0, a)
	for i := 1; i < 4; i++ {
		from := a
		if i >= 2 {
			from = b
		}
		l.code = append(l.code, ins{op: "ins.s", v: []int{to, from}, i: i, j: order >> (2 * i) & 3})
	}
	return to
}

// permute lowers the choice of lanes from all eight by an index: bytes of the lower half, then of the upper half where
// the index is past it.
func (l *lowering) permute(x line) {
	a := x.args
	lo, hi := l.pair(a[0], 'y')
	seven := l.constant(0x0000000700000007, 0x0000000700000007)
	spread := l.constant(0x0404040404040404, 0x0404040404040404)
	count := l.constant(0x0302010003020100, 0x0302010003020100)
	sixteen := l.constant(0x1010101010101010, 0x1010101010101010)
	l.halves(a[2], func(v []int) int {
		index := l.e("add.4s", l.e("mul.4s", l.e("and.16b", v[0], seven), spread), count)
		return l.e("tbx.16b", l.e("tbl.16b", lo, index), hi, l.e("sub.16b", index, sixteen))
	}, a[1])
}
