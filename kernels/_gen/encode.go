package main

import (
	"fmt"
	"strings"
)

// General registers by their number in an encoding.
const (
	rAX = iota
	rCX
	rDX
	rBX
	_
	_
	rSI
	rDI
	rR8
	_
	_
	rR11
	_
	rR13
)

// Mandatory prefixes of VEX and EVEX encodings.
const (
	ppNone = 0
	pp66   = 1
	ppF3   = 2
	ppF2   = 3
)

// file is the assembly text being written.
type file struct{ strings.Builder }

// raw writes one line as it is.
func (f *file) raw(s string) { f.WriteString(s + "\n") }

// op writes one instruction.
func (f *file) op(format string, args ...any) {
	f.WriteString("\t" + fmt.Sprintf(format, args...) + "\n")
}

// label starts a block.
func (f *file) label(format string, args ...any) {
	f.WriteString("\n" + fmt.Sprintf(format, args...) + ":\n")
}

// doc writes a comment block.
func (f *file) doc(format string, args ...any) {
	f.WriteString("\n")
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		f.WriteString("// " + line + "\n")
	}
}

// bytes writes an encoded instruction with its name as a comment.
func (f *file) bytes(b []byte, format string, args ...any) {
	s := make([]string, len(b))
	for i, x := range b {
		s[i] = fmt.Sprintf("BYTE $0x%02x", x)
	}
	f.WriteString("\t" + strings.Join(s, "; ") + " // " + fmt.Sprintf(format, args...) + "\n")
}

func hexOf(b []byte) string { return fmt.Sprintf("%x", b) }

// evex encodes a 512-bit instruction of the 0F38 map with W0: prefix, reg, vvvv and (for a register operand) rm.
func evex(pp, opcode, reg, vvvv, rm int, bcst bool) []byte {
	p0 := 0x02 | (bit(reg, 3)^1)<<7 | (bit(rm, 4)^1)<<6 | (bit(rm, 3)^1)<<5 | (bit(reg, 4)^1)<<4
	p1 := 0x04 | (^vvvv&15)<<3 | pp
	p2 := 0x40 | (bit(vvvv, 4)^1)<<3
	if bcst {
		p2 |= 0x10
	}
	return []byte{0x62, byte(p0), byte(p1), byte(p2), byte(opcode)}
}

func bit(x, n int) int { return x >> n & 1 }

func regReg(reg, rm int) byte { return byte(0xc0 | reg&7<<3 | rm&7) }

// dpbf16 is VDPBF16PS dst, a, b: dst += a.even·b.even + a.odd·b.odd per 32-bit lane.
func dpbf16(dst, a, b int) []byte { return append(evex(ppF3, 0x52, dst, a, b, false), regReg(dst, b)) }

// dpbf16Bcst is VDPBF16PS with one pair at base+disp broadcast; disp is a multiple of 4 below 512.
func dpbf16Bcst(dst, a, base, disp int) []byte {
	return append(evex(ppF3, 0x52, dst, a, base, true), byte(0x40|dst&7<<3|base), byte(disp/4))
}

// cvtne2 is VCVTNE2PS2BF16 dst, hi, lo: the 16 floats of lo, then those of hi, as bfloat16.
func cvtne2(dst, hi, lo int) []byte {
	return append(evex(ppF2, 0x72, dst, hi, lo, false), regReg(dst, lo))
}

// vex encodes a 128-bit instruction of the 0F38 map with W0 up to its opcode.
func vex(pp, opcode, vvvv int) []byte {
	return []byte{0xc4, 0xe2, byte(^vvvv&15<<3 | pp), byte(opcode)}
}

// sib is the memory operand [base + index + disp] with a 32-bit displacement.
func sib(reg, base, index, disp int) []byte {
	return []byte{
		byte(0x84 | reg<<3), byte(index<<3 | base), byte(disp), byte(disp >> 8), byte(disp >> 16),
		byte(disp >> 24),
	}
}

// tileLoad is TILELOADD: rows of 64 bytes, or of what the tile is configured to have, index bytes apart.
func tileLoad(tile, base, index, disp int) []byte {
	v := vex(ppF2, 0x4b, 0)
	v[1] ^= byte(bit(base, 3) << 5)
	return append(v, sib(tile, base&7, index, disp)...)
}

// tileStore is TILESTORED.
func tileStore(tile, base, index, disp int) []byte {
	return append(vex(ppF3, 0x4b, 0), sib(tile, base, index, disp)...)
}

// tdpbf16 is TDPBF16PS c, a, b: c[16,16] += a[16,32]·b[32,16] with b in pairs.
func tdpbf16(c, a, b int) []byte { return append(vex(ppF3, 0x5c, b), regReg(c, a)) }

// tdpbssd is TDPBSSD c, a, b: c[16,16] += a[16,64]·b[64,16] of signed bytes, with b in fours, or of as many as the tiles
// are configured to have.
func tdpbssd(c, a, b int) []byte { return append(vex(ppF2, 0x5e, b), regReg(c, a)) }

func tileZero(t int) []byte { return append(vex(ppF2, 0x49, 0), regReg(t, 0)) }

func loadTileConfig(base int) []byte { return append(vex(ppNone, 0x49, 0), byte(base)) }

func tileRelease() []byte { return append(vex(ppNone, 0x49, 0), 0xc0) }

// vpdpbusd is AVX-VNNI's VPDPBUSD dst, unsigned, signed on 256 bits: dst += Σ unsigned·signed of the four bytes of every
// 32-bit lane. Go's assembler has AVX-512's encoding of it alone, which processors without AVX-512 lack.
func vpdpbusd(dst, unsigned, signed int) []byte {
	return append(vex256(dst, unsigned, signed), regReg(dst, signed))
}

// vpdpbusdFrom is vpdpbusd with its signed bytes at base+disp. The base is none of SP, BP, R12 and R13, which are
// encoded in another way.
func vpdpbusdFrom(dst, unsigned, base, disp int) []byte {
	b := append(vex256(dst, unsigned, base), byte(0x80|dst&7<<3|base&7))
	return append(b, byte(disp), byte(disp>>8), byte(disp>>16), byte(disp>>24))
}

// vex256 encodes VPDPBUSD up to its opcode, with registers up to 15.
func vex256(reg, vvvv, rm int) []byte {
	return []byte{
		0xc4, byte(0x42 | (bit(reg, 3)^1)<<7 | (bit(rm, 3)^1)<<5),
		byte(0x04 | ^vvvv&15<<3 | pp66), 0x50,
	}
}
