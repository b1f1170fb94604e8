package main

import (
	"fmt"
	"strconv"
	"strings"
)

// ins is one instruction. Vector registers are numbers of values before registers are chosen, then numbers of registers.
type ins struct {
	op   string // a row of table; empty for an instruction that Go's assembler knows, or a label
	v    []int  // vector registers in the order of the row's operands
	x, m int    // general registers: address, source or destination, and index
	i, j int    // immediate operands

	text   string // in Go's syntax; {0} stands for F and the number of v[0]
	def    bool   // text writes v[0], else it reads it
	label  string // starts a block
	jump   string // may go there
	always bool   // goes there in every case, or returns
}

// split returns the registers that an instruction writes and those that it reads.
func (n *ins) split() (defs, uses []int) {
	if n.op == "" {
		if len(n.v) == 0 {
			return nil, nil
		}
		if n.def {
			return n.v, nil
		}
		return nil, n.v
	}

	for k, c := range strings.Replace(table[n.op].ops, "=", "", 1) {
		switch c {
		case 'D', 'E', 'F', 'G', 'T':
			defs = append(defs, n.v[k])
		case 'd':
			defs = append(defs, n.v[k])
			uses = append(uses, n.v[k])
		default:
			uses = append(uses, n.v[k])
		}
	}
	return defs, uses
}

// lasting reports whether an instruction does more than write vector registers.
func (n *ins) lasting() bool {
	if n.op == "" {
		return !n.def
	}
	r := table[n.op]
	return !strings.ContainsAny(r.ops, "Dd") || strings.Contains(r.format, "[{x}], ")
}

// follows reports whether the register at place k of an instruction is the next one after that at the place before.
func (n *ins) follows(k int) bool {
	return n.op != "" && k > 0 && k < len(table[n.op].ops) && strings.IndexByte("EFG", table[n.op].ops[k]) >= 0
}

// size is the number of bits of an element, by the name's arrangement.
func size(op string) int {
	switch op[len(op)-1] {
	case 'b':
		return 8
	case 'h':
		return 16
	case 's':
		return 32
	}
	return 64
}

// encode returns the word of an instruction whose registers are chosen.
func (n *ins) encode() uint32 {
	r, ok := table[n.op]
	if !ok {
		panic("no instruction " + n.op)
	}
	w := r.word
	for k, c := range strings.Replace(r.ops, "=", "", 1) {
		if n.follows(k) {
			continue
		}
		w |= uint32(n.v[k]) << map[rune]int{'D': 0, 'd': 0, 'S': 0, 'T': 10, 't': 10, 'N': 5, 'M': 16}[c]
	}
	switch {
	case strings.Contains(r.format, "{m}"):
		w |= uint32(n.m) << 16
	case isMove(n): // a vector or itself
		w |= uint32(n.v[1]) << 16
	}

	switch {
	case strings.Contains(r.format, "{wg}"), strings.Contains(r.format, "{xg}"):
		w |= uint32(n.x)
	case strings.Contains(r.format, "x}"):
		w |= uint32(n.x) << 5
	}
	return w | n.immediate(r.imm)
}

// immediate places the immediate operands.
func (n *ins) immediate(kind int) uint32 {
	i, j := uint32(n.i), uint32(n.j)
	switch kind {
	case immLeft:
		return i << 16
	case immRight:
		return uint32(size(n.op)-n.i) << 16
	case immExt:
		return i << 11
	case immLaneH:
		return i << 18
	case immLaneS:
		return i << 19
	case immLaneD:
		return i << 20
	case immInsH:
		return i<<18 | j<<12
	case immInsS:
		return i<<19 | j<<13
	case immInsD:
		return i<<20 | j<<14
	case immByte:
		return i>>5<<16 | i&31<<5
	case immElem:
		return i&1<<21 | i>>1<<11
	case immU16:
		return i / 16 << 10
	case immU8:
		return i / 8 << 10
	case immU4:
		return i / 4 << 10
	case immU9:
		return i & 0x1ff << 12
	case immP16:
		return uint32(n.i/16) & 0x7f << 15
	case immLd1S:
		return i>>1<<30 | i&1<<12
	}
	return 0
}

// String is the instruction as objdump writes it.
func (n *ins) String() string {
	r := table[n.op]
	s := r.format
	for k, c := range strings.Replace(r.ops, "=", "", 1) {
		name := strings.ToUpper(string(c))
		if name == "S" {
			name = "D"
		}
		num := strconv.Itoa(n.v[k])
		s = strings.ReplaceAll(s, "{"+name+"}", "v"+num)
		for _, part := range []string{"q", "d", "s", "b"} {
			s = strings.ReplaceAll(s, "{"+name+part+"}", part+num)
		}
	}

	off := ""
	if n.i != 0 {
		off = fmt.Sprintf(", #%d", n.i)
	}
	return strings.NewReplacer("{off}", off, "{i}", strconv.Itoa(n.i), "{j}", strconv.Itoa(n.j), "{x}", "x"+strconv.Itoa(n.x),
		"{m}", "x"+strconv.Itoa(n.m), "{wg}", "w"+strconv.Itoa(n.x), "{xg}", "x"+strconv.Itoa(n.x),
		"{wx}", "w"+strconv.Itoa(n.x), "{xx}", "x"+strconv.Itoa(n.x)).Replace(s)
}

// write is the instruction in Go's assembly.
func (n *ins) write() string {
	switch {
	case n.label != "":
		return "\n" + n.label + ":\n"
	case n.op != "":
		return fmt.Sprintf("\tWORD $0x%08x // %s\n", n.encode(), n)
	case len(n.v) > 0:
		return "\t" + strings.ReplaceAll(n.text, "{0}", "F"+strconv.Itoa(n.v[0])) + "\n"
	}
	return "\t" + n.text + "\n"
}
