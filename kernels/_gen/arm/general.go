package main

import (
	"fmt"
	"math/bits"
	"strings"
)

// setsFlags lists the instructions whose flags jumps read.
var setsFlags = map[string]bool{
	"ADDQ": true, "SUBQ": true, "DECQ": true, "INCQ": true, "CMPQ": true, "CMPL": true, "TESTQ": true, "TESTL": true,
	"ANDQ": true, "ANDL": true, "SHRQ": true, "SHLQ": true, "XORL": true, "ORL": true, "XORQ": true, "BLSRL": true,
	"POPCNTL": true, "VPTEST": true, "ADDL": true, "SUBL": true, "SHLL": true, "SHRL": true, "TZCNTL": true, "BSFL": true,
	"ORQ": true, "VPTESTX": true, "DECL": true,
}

// readsFlags reports whether an instruction depends on flags.
func readsFlags(op string) bool { return op[0] == 'J' && op != "JMP" || strings.HasPrefix(op, "CMOV") }

// flow finds the lines whose flags are read.
func (f *function) flow() {
	last := -1
	for i := range f.lines {
		l := &f.lines[i]
		switch {
		case l.op == "": // flags may come from elsewhere; none of the descriptions does that
			last = -1
		case readsFlags(l.op):
			if last < 0 {
				panic(fmt.Sprintf("%s: flags of %q are set before a label", f.name, l.text))
			}
			l.setter = last
			f.lines[last].flags = true
		case setsFlags[l.op]:
			last = i
		}
	}
}

// condition is the suffix of a conditional branch.
func (l *lowering) condition(jump line) string {
	cond := strings.TrimPrefix(strings.TrimPrefix(jump.op, "J"), "CMOVQ")
	by := l.f.lines[jump.setter].op
	arm, ok := map[string]string{
		"Z": "EQ", "EQ": "EQ", "E": "EQ", "NZ": "NE", "NE": "NE", "LT": "LT", "L": "LT", "GE": "GE", "LE": "LE", "GT": "GT",
		"G": "GT", "CS": "LO", "CC": "HS", "B": "LO", "AE": "HS", "HI": "HI", "LS": "LS", "MI": "MI", "PL": "PL",
		"BE": "LS", "A": "HI", "S": "MI", "NS": "PL",
	}[cond]
	if !ok {
		panic("condition " + cond)
	}
	if arm == "LO" || arm == "HS" || arm == "LS" || arm == "HI" {
		if by != "SUBQ" && by != "CMPQ" && by != "CMPL" && by != "SUBL" {
			panic(fmt.Sprintf("%s: carry of %s", l.f.name, by))
		}
	}
	return arm
}

// say writes an instruction of Go's assembler.
func (l *lowering) say(format string, args ...any) {
	l.code = append(l.code, ins{text: fmt.Sprintf(format, args...)})
}

// address returns a register and a displacement for a memory operand.
func (l *lowering) address(o operand) (reg, off int) {
	switch o.kind {
	case 's':
		return l.symbol(o.name), o.off
	case 'm':
		if o.index < 0 {
			return o.n, o.off
		}
		l.say("ADD R%d%s, R%d, R16", o.index, shifted(o.scale), o.n)
		return 16, o.off
	}
	panic("no address")
}

// exact returns a register that holds the address itself.
func (l *lowering) exact(o operand) int {
	reg, off := l.address(o)
	if off == 0 {
		return reg
	}
	l.say("ADD $%d, R%d, R16", off, reg)
	return 16
}

func shifted(scale int) string {
	if scale == 1 {
		return ""
	}
	return fmt.Sprintf("<<%d", bits.TrailingZeros(uint(scale)))
}

// symbol returns the register that holds the address of a table from the function's start on.
func (l *lowering) symbol(name string) int {
	for i, s := range l.symbols {
		if s == name {
			return 19 + i
		}
	}
	if len(l.symbols) == 6 {
		panic(l.f.name + ": too many tables")
	}
	l.symbols = append(l.symbols, name)
	return 18 + len(l.symbols)
}

// place is a general memory operand in Go's syntax.
func (l *lowering) place(o operand) string {
	if o.kind == 'f' {
		return fmt.Sprintf("%s+%d(FP)", o.name, o.off)
	}
	reg, off := l.address(o)
	return fmt.Sprintf("%d(R%d)", off, reg)
}

// value is the register that holds an operand; memory and immediates are loaded into R17.
func (l *lowering) value(o operand, wide bool) int {
	switch o.kind {
	case 'r':
		return o.n
	case 'i':
		l.say("MOVD $%d, R17", o.n)
		return 17
	}
	l.say("%s %s, R17", map[bool]string{true: "MOVD", false: "MOVWU"}[wide], l.place(o))
	return 17
}

var arithmetic = map[string]string{
	"ADD": "ADD", "SUB": "SUB", "AND": "AND", "OR": "ORR", "XOR": "EOR", "SHL": "LSL", "SHR": "LSR", "INC": "ADD",
	"DEC": "SUB",
}

// general lowers an instruction on general registers; it reports whether there was one.
func (l *lowering) general(x line) bool {
	a := x.args
	switch x.op {
	case "RET":
		l.code = append(l.code, ins{text: "RET", always: true})
	case "PREFETCHT0", "PREFETCHT1", "PREFETCHNTA":
		reg := l.exact(a[0])
		l.say("PRFM (R%d), PLDL%dKEEP", reg, map[bool]int{true: 2, false: 1}[x.op == "PREFETCHT1"])
	case "MOVQ", "MOVL":
		return l.move(x)
	case "MOVBLZX":
		l.say("MOVBU %s, R%d", l.place(a[0]), a[1].n)
	case "MOVWLZX":
		l.say("MOVHU %s, R%d", l.place(a[0]), a[1].n)
	case "MOVLQSX":
		l.say("MOVW %s, R%d", l.place(a[0]), a[1].n)
	case "MOVB":
		l.say("MOVB R%d, %s", a[0].n, l.place(a[1]))
	case "MOVW":
		l.say("MOVH R%d, %s", a[0].n, l.place(a[1]))
	case "XCHGQ":
		l.say("MOVD R%d, R17", a[0].n)
		l.say("MOVD R%d, R%d", a[1].n, a[0].n)
		l.say("MOVD R17, R%d", a[1].n)
	case "LEAQ":
		l.lea(a[0], a[1].n)
	case "CMPQ", "CMPL", "TESTQ", "TESTL":
		l.compare(x)
	case "BSFL", "TZCNTL":
		l.say("RBITW R%d, R%d", a[0].n, a[1].n)
		l.say("CLZW R%d, R%d", a[1].n, a[1].n)
		l.zeroFlag(x, a[1].n)
	case "BLSRL":
		l.say("SUBW $1, R%d, R17", a[0].n)
		l.say("ANDW R17, R%d, R%d", a[0].n, a[1].n)
		l.zeroFlag(x, a[1].n)
	case "POPCNTL":
		t := l.fresh()
		l.code = append(l.code, ins{op: "fmov.sw", v: []int{t}, x: a[0].n})
		l.code = append(l.code, ins{op: "fmov.ws", v: []int{l.e("addv.8b", l.e("cnt.8b", t))}, x: a[1].n})
		l.zeroFlag(x, a[1].n)
	case "CMOVQLT":
		l.say("CSEL %s, R%d, R%d, R%d", l.condition(x), a[0].n, a[1].n, a[1].n)
	default:
		return l.jumpOrArithmetic(x)
	}
	return true
}

func (l *lowering) jumpOrArithmetic(x line) bool {
	if x.op[0] == 'J' {
		l.settle()
		branch := ins{jump: x.label, text: "B " + x.label, always: true}
		if x.op != "JMP" {
			branch = ins{jump: x.label, text: "B" + l.condition(x) + " " + x.label}
		}
		l.code = append(l.code, branch)
		return true
	}
	op, ok := arithmetic[x.op[:len(x.op)-1]]
	suffix := x.op[len(x.op)-1]
	if !ok || suffix != 'Q' && suffix != 'L' {
		return false
	}
	l.arithmetic(x, op, suffix == 'Q')
	return true
}

// arithmetic lowers an operation whose last operand is source and destination.
func (l *lowering) arithmetic(x line, op string, wide bool) {
	a := x.args
	if len(a) == 1 {
		a = []operand{{kind: 'i', n: 1}, a[0]}
	}
	w := map[bool]string{true: "", false: "W"}[wide]
	if op == "EOR" && a[0] == a[1] {
		l.say("MOVD ZR, R%d", a[1].n)
		return
	}

	flags, late := "", false
	if x.flags {
		if op == "ADD" || op == "SUB" || op == "AND" {
			flags = "S"
		} else {
			late = true
		}
	}

	from := fmt.Sprintf("$%d", a[0].n)
	switch a[0].kind {
	case 'r':
		from = fmt.Sprintf("R%d", a[0].n)
	case 'i':
	default:
		from = fmt.Sprintf("R%d", l.value(a[0], wide))
	}
	if a[1].kind == 'r' {
		l.say("%s%s%s %s, R%d, R%d", op, flags, w, from, a[1].n, a[1].n)
		if late {
			l.zeroFlag(x, a[1].n)
		}
		return
	}

	at := l.place(a[1])
	load, store := "MOVD", "MOVD"
	if !wide {
		load, store = "MOVWU", "MOVW"
	}
	l.say("%s %s, R7", load, at)
	l.say("%s%s%s %s, R7, R7", op, flags, w, from)
	l.say("%s R7, %s", store, at)
}

// zeroFlag compares a result with 0 where a jump depends on it.
func (l *lowering) zeroFlag(x line, reg int) {
	if x.flags {
		l.say("CMP $0, R%d", reg)
	}
}

func (l *lowering) compare(x line) {
	a := x.args
	wide := strings.HasSuffix(x.op, "Q")
	w := map[bool]string{true: "", false: "W"}[wide]
	if strings.HasPrefix(x.op, "TEST") {
		if a[0].kind == 'i' {
			l.say("TST%s $%d, R%d", w, a[0].n, a[1].n)
		} else {
			l.say("TST%s R%d, R%d", w, a[0].n, a[1].n)
		}
		return
	}

	left := a[0].n
	if a[0].kind != 'r' {
		left = l.value(a[0], wide)
	}
	if a[1].kind == 'i' {
		l.say("CMP%s $%d, R%d", w, a[1].n, left)
		return
	}
	right := a[1].n
	if a[1].kind != 'r' {
		l.say("%s %s, R7", map[bool]string{true: "MOVD", false: "MOVWU"}[wide], l.place(a[1]))
		right = 7
	}
	l.say("CMP%s R%d, R%d", w, right, left)
}

func (l *lowering) lea(o operand, to int) {
	if o.kind == 's' {
		if o.off == 0 {
			l.say("MOVD $%s(SB), R%d", o.name, to)
		} else {
			l.say("MOVD $%s+%d(SB), R%d", o.name, o.off, to)
		}
		return
	}
	if o.index >= 0 {
		l.say("ADD R%d%s, R%d, R%d", o.index, shifted(o.scale), o.n, to)
		if o.off != 0 {
			l.say("ADD $%d, R%d, R%d", o.off, to, to)
		}
		return
	}
	l.say("ADD $%d, R%d, R%d", o.off, o.n, to)
}

// move lowers MOVQ and MOVL; between general and vector registers too.
func (l *lowering) move(x line) bool {
	a := x.args
	wide := x.op == "MOVQ"
	load, store := "MOVD", "MOVD"
	if !wide {
		load, store = "MOVWU", "MOVW"
	}

	switch {
	case a[0].kind == 'x' || a[1].kind == 'x':
		return false
	case a[0].kind == 'i' && a[1].kind == 'r':
		n := a[0].n
		if !wide {
			n = int(uint32(n))
		}
		l.say("MOVD $%d, R%d", n, a[1].n)
	case a[0].kind == 'i':
		from := "ZR"
		if a[0].n != 0 {
			l.say("MOVD $%d, R7", a[0].n)
			from = "R7"
		}
		l.say("%s %s, %s", store, from, l.place(a[1]))
	case a[0].kind == 'r' && a[1].kind == 'r':
		l.say("%s R%d, R%d", load, a[0].n, a[1].n)
	case a[0].kind == 'r':
		l.say("%s R%d, %s", store, a[0].n, l.place(a[1]))
	default:
		l.say("%s %s, R%d", load, l.place(a[0]), a[1].n)
	}
	return true
}
