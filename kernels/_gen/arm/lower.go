package main

import (
	"fmt"
	"slices"
	"strings"
)

// lowering turns a function for AVX2 into one for Advanced SIMD. A register of 256 bits is a pair of values of 128, so
// that every lane goes through the same operations in the same order, and results are the same bits: Y3 is values 6 and
// 7. Within a block every result is a new value; at its end they are copied to where the next block looks for them, and
// registers chooses the same register for most copies' two sides. A register that holds the same in both halves wherever
// it is written is one value.
type lowering struct {
	f       *function
	src     *source
	pool    *pool
	code    []ins
	symbols []string
	single  map[int]bool // registers whose halves are always equal
	now     map[int]int  // value of a half register in this block
	masks   map[int]bool // values whose lanes are all ones or all zeros
	counted [2]int       // values of the mask whose lanes R20 counts
	last    int
	labels  int

	products
}

// products are notes on values of this block: magnitudes, values with the signs of others, sums of two products of bytes
// and of four, and more.
type products struct {
	dots      bool // there is SDOT, bytes that are taken as unsigned are below 128, and 16-bit factors are ones
	magnitude map[int]int
	signed    map[int][2]int
	two, four map[int][2]int
	widened   map[int][2]int // 16 bits widened to 32: from where, and 1 for the upper half
}

func (p *products) forget() {
	p.magnitude, p.signed = map[int]int{}, map[int][2]int{}
	p.two, p.four, p.widened = map[int][2]int{}, map[int][2]int{}, map[int][2]int{}
}

// lower returns the code of a function with registers chosen.
func lower(f *function, src *source, p *pool, j job) ([]ins, []string, error) {
	f.flow()
	l := newLowering(f, src, p)
	l.dots = j.dots
	l.single = l.uniform()
	l.code = append(l.code, ins{label: "start"})
	l.entry()
	for _, x := range f.lines {
		switch {
		case x.op == "":
			l.settle()
			l.code = append(l.code, ins{label: x.label})
		case l.general(x) || x.op == "VZEROUPPER":
		default:
			l.vector(x)
		}
	}

	code, err := allocate(l.code)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.name, err)
	}
	return code[1:], l.symbols, nil
}

func newLowering(f *function, src *source, p *pool) *lowering {
	l := &lowering{f: f, src: src, pool: p, now: map[int]int{}, masks: map[int]bool{}, last: 64, counted: [2]int{-1, -1}}
	l.forget()
	return l
}

// entry gives every register a value, as some descriptions clear a register by comparing it with itself.
func (l *lowering) entry() {
	for v := range 64 {
		l.code = append(l.code, ins{op: "movi0", v: []int{v}})
	}
}

// fresh returns a new value.
func (l *lowering) fresh() int {
	l.last++
	return l.last
}

// e writes an operation on values and returns its result. Where it also reads what it writes, that is the first source.
func (l *lowering) e(op string, v ...int) int { return l.ei(op, 0, 0, v...) }

// ei is e with immediate operands.
func (l *lowering) ei(op string, i, j int, v ...int) int {
	r, ok := table[op]
	if !ok {
		panic("no instruction " + op)
	}
	to := l.fresh()
	if strings.HasPrefix(r.ops, "d") {
		l.code = append(l.code, ins{op: "mov.16b", v: []int{to, v[0]}})
		v = v[1:]
	}
	l.code = append(l.code, ins{op: op, v: append([]int{to}, v...), i: i, j: j})
	return to
}

// from writes an operation from a general register.
func (l *lowering) from(op string, reg int) int {
	to := l.fresh()
	l.code = append(l.code, ins{op: op, v: []int{to}, x: reg})
	return to
}

// to writes an operation to a general register.
func (l *lowering) to(op string, v, reg, lane int) {
	l.code = append(l.code, ins{op: op, v: []int{v}, x: reg, i: lane})
}

// half is the value of a half of a register.
func (l *lowering) half(n, h int) int {
	c := 2 * n
	if h == 1 && !l.single[n] {
		c++
	}
	if v, ok := l.now[c]; ok {
		return v
	}
	return c
}

// set gives a register its value.
func (l *lowering) set(o operand, lo, hi int) {
	if o.kind == 'x' {
		if l.single[o.n] {
			panic("half of a register with equal halves")
		}
		hi = l.e("movi0")
	}
	l.now[2*o.n] = lo
	if !l.single[o.n] {
		l.now[2*o.n+1] = hi
	}
}

// settle copies the values of a block to where the next ones look for them, all at once.
func (l *lowering) settle() {
	type move struct{ to, from int }
	var moves []move
	for c, v := range l.now {
		if c != v {
			moves = append(moves, move{c, v})
		}
	}
	slices.SortFunc(moves, func(a, b move) int { return a.to - b.to })

	for len(moves) > 0 {
		i := slices.IndexFunc(moves, func(m move) bool {
			return !slices.ContainsFunc(moves, func(o move) bool { return o.from == m.to && o.to != m.to })
		})
		if i < 0 { // a ring: one value is put aside
			t := l.e("mov.16b", moves[0].from)
			for k := range moves {
				if moves[k].from == moves[0].from && k != 0 {
					moves[k].from = t
				}
			}
			moves[0].from = t
			continue
		}
		l.code = append(l.code, ins{op: "mov.16b", v: []int{moves[i].to, moves[i].from}})
		moves = slices.Delete(moves, i, i+1)
	}
	clear(l.now)
	clear(l.masks)
	l.counted = [2]int{-1, -1}
	l.forget()
}

// uniform finds the registers that hold the same in both halves wherever they are written.
func (l *lowering) uniform() map[int]bool {
	single := map[int]bool{}
	for n := range 16 {
		single[n] = true
	}
	used := map[int]bool{}
	equal := func(o operand) bool {
		switch o.kind {
		case 'y':
			return single[o.n]
		case 's':
			return l.src.same(o.name, o.off, 16, 16)
		}
		return o.kind == 'i'
	}

	for changed := true; changed; {
		changed = false
		for _, x := range l.f.lines {
			if x.op == "" || x.op[0] != 'V' && x.op[0] != 'M' || len(x.args) == 0 {
				continue
			}
			d := x.args[len(x.args)-1]
			if d.kind != 'x' && d.kind != 'y' {
				continue
			}
			used[d.n] = true
			if !single[d.n] || d.kind == 'y' && l.writesEqual(x, equal) {
				continue
			}
			single[d.n] = false
			changed = true
		}
	}
	return single
}

// writesEqual reports whether an instruction writes equal halves.
func (l *lowering) writesEqual(x line, equal func(operand) bool) bool {
	a := x.args
	switch {
	case strings.HasPrefix(x.op, "VBROADCAST"), strings.HasPrefix(x.op, "VPBROADCAST"):
		return true
	case clears(x):
		return true
	case strings.HasPrefix(x.op, "VPERM2F128"):
		return a[0].n == 0 || a[0].n == 0x11
	case strings.HasPrefix(x.op, "VPMOV"), strings.HasPrefix(x.op, "VCVTPS2PD"), strings.HasPrefix(x.op, "VCVTPH2PS"),
		strings.HasPrefix(x.op, "VINSERT"), strings.HasPrefix(x.op, "VGATHER"), strings.HasPrefix(x.op, "VPERMPS"),
		strings.HasPrefix(x.op, "VPERMD"), strings.HasPrefix(x.op, "VPERMQ"), strings.HasPrefix(x.op, "VPERMPD"),
		strings.HasPrefix(x.op, "VMASKMOV"), strings.HasPrefix(x.op, "VPBLENDD"):
		return false
	}
	for _, o := range a {
		if !equal(o) {
			return false
		}
	}
	return true
}

// clears reports whether an instruction writes the same whatever it reads.
func clears(x line) bool {
	switch x.op {
	case "VXORPS", "VXORPD", "VPXOR", "VPCMPEQD", "VPCMPEQB", "VPCMPEQW", "VPSUBD":
		return len(x.args) == 3 && x.args[0].kind != 'm' && x.args[0].n == x.args[1].n && x.args[0].kind == x.args[1].kind &&
			(x.args[0].kind == 'x' || x.args[0].kind == 'y')
	}
	return false
}

// load reads 32, 16, 8 or 4 bytes from memory.
func (l *lowering) load(o operand, size int) (lo, hi int) {
	switch o.kind {
	case 'f':
		to := l.fresh()
		l.code = append(l.code, ins{
			text: fmt.Sprintf("FMOV%s %s+%d(FP), {0}", map[int]string{4: "S", 8: "D"}[size], o.name, o.off),
			v:    []int{to}, def: true,
		})
		return to, to
	case 's':
		if size == 32 && l.src.same(o.name, o.off, 16, 16) {
			size = 16
		}
	}

	reg, off := l.address(o)
	lo = l.fresh()
	if size < 32 {
		l.code = append(l.code, l.access("ldr", map[int]string{16: "q", 8: "d", 4: "s"}[size], size, lo, reg, off)...)
		return lo, lo
	}
	hi = l.fresh()
	if off%16 == 0 && off >= -1024 && off <= 1008 {
		l.code = append(l.code, ins{op: "ldp.q", v: []int{lo, hi}, x: reg, i: off})
		return lo, hi
	}
	l.code = append(l.code, l.access("ldr", "q", 16, lo, reg, off)...)
	l.code = append(l.code, l.access("ldr", "q", 16, hi, reg, off+16)...)
	return lo, hi
}

// access is a load or store of one register.
func (l *lowering) access(op, kind string, size, v, reg, off int) []ins {
	switch {
	case off >= 0 && off%size == 0 && off < 4096*size:
		return []ins{{op: op + "." + kind, v: []int{v}, x: reg, i: off}}
	case off >= -256 && off < 256:
		return []ins{{op: op[:2] + "ur." + kind, v: []int{v}, x: reg, i: off}}
	}
	return []ins{
		{text: fmt.Sprintf("ADD $%d, R%d, R17", off, reg)},
		{op: op + "." + kind, v: []int{v}, x: 17},
	}
}

// store writes to memory.
func (l *lowering) store(o operand, size, lo, hi int) {
	if o.kind == 'f' {
		l.code = append(l.code, ins{
			text: fmt.Sprintf("FMOV%s {0}, %s+%d(FP)", map[int]string{4: "S", 8: "D"}[size], o.name, o.off), v: []int{lo},
		})
		return
	}

	reg, off := l.address(o)
	switch {
	case size < 32:
		l.code = append(l.code, l.access("str", map[int]string{16: "q", 8: "d", 4: "s"}[size], size, lo, reg, off)...)
	case off%16 == 0 && off >= -1024 && off <= 1008:
		l.code = append(l.code, ins{op: "stp.q", v: []int{lo, hi}, x: reg, i: off})
	default:
		l.code = append(l.code, l.access("str", "q", 16, lo, reg, off)...)
		l.code = append(l.code, l.access("str", "q", 16, hi, reg, off+16)...)
	}
}

// pair returns the values of an operand of an instruction on registers of the kind of its destination.
func (l *lowering) pair(o operand, kind byte) (lo, hi int) {
	switch {
	case o.kind == 'x' || o.kind == 'y':
		if kind == 'x' {
			return l.half(o.n, 0), l.half(o.n, 0)
		}
		return l.half(o.n, 0), l.half(o.n, 1)
	case kind == 'x':
		return l.load(o, 16)
	}
	return l.load(o, 32)
}

// halves runs f for the lower and the upper values of operands, once where they are the same, and sets the destination.
func (l *lowering) halves(d operand, f func(v []int) int, sources ...operand) {
	var lo, hi []int
	for _, s := range sources {
		a, b := l.pair(s, d.kind)
		lo, hi = append(lo, a), append(hi, b)
	}
	a := f(lo)
	b := a
	if d.kind == 'y' && !slices.Equal(lo, hi) {
		b = f(hi)
	}
	l.set(d, a, b)
}

// constant returns the value of 16 bytes.
func (l *lowering) constant(a, b uint64) int {
	reg := l.symbol("neon<>")
	to := l.fresh()
	l.code = append(l.code, ins{op: "ldr.q", v: []int{to}, x: reg, i: l.pool.place(a, b)})
	return to
}

// pool collects constants of a file.
type pool struct{ values [][2]uint64 }

func (p *pool) place(a, b uint64) int {
	v := [2]uint64{a, b}
	i := slices.Index(p.values, v)
	if i < 0 {
		i = len(p.values)
		p.values = append(p.values, v)
	}
	return 16 * i
}

func (l *lowering) newLabel(name string) string {
	l.labels++
	return fmt.Sprintf("%s_%d", name, l.labels)
}
