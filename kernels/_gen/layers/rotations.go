package main

import "fmt"

// offset is an address with a displacement.
func offset(n int, reg string) string {
	if n == 0 {
		return "(" + reg + ")"
	}
	return fmt.Sprintf("%d(%s)", n, reg)
}

// rotations writes rotary position embeddings for both pairings of channels.
func rotations(f *file) {
	f.heads("rope", "for h < heads, i { a, b := x[h·stride + i], x[h·stride + len(cos) + i]; a, b = a·cos[i] - "+
		"b·sin[i], b·cos[i] + a·sin[i] }", func() {
		f.op("LEAQ (DI)(CX*4), SI")
		f.loop(f.streams(4), func(tail bool) {
			f.get("(DI)", 0, tail)
			f.get("(SI)", 1, tail)
			f.get("(DX)", 2, tail)
			f.get("(BX)", 3, tail)
			f.op("VMULPS {3}, {1}, {4}")
			f.op("VMULPS {3}, {0}, {5}")
			f.op("VFMSUB213PS {4}, {2}, {0}")
			f.op("VFMADD213PS {5}, {2}, {1}")
			f.put(0, "(DI)", tail)
			f.put(1, "(SI)", tail)
		})
	})

	f.heads("ropePairs", "for h < heads, i { a, b := x[h·stride + 2i], x[h·stride + 2i + 1]; a, b = a·cos[i] - "+
		"b·sin[i], b·cos[i] + a·sin[i] }", func() {
		f.op("ADDQ CX, CX")
		f.loop(map[string]int{"DI": 4 * f.lanes, "DX": 2 * f.lanes, "BX": 2 * f.lanes}, func(tail bool) {
			f.get("(DI)", 0, tail)
			f.getHalf("(DX)", 1, tail)
			f.getHalf("(BX)", 2, tail)
			f.op("VPERMPS {1}, {14}, {1}")
			f.op("VPERMPS {2}, {14}, {2}")
			f.op("VPERMILPS $0xb1, {0}, {3}")
			f.op("VMULPS {2}, {3}, {3}")
			f.op("VFMADDSUB213PS {3}, {1}, {0}") // even lanes subtract
			f.put(0, "(DI)", tail)
		})
	})
}

// heads writes a function that runs body for every head of a row: DI is the head, DX and BX cosines and sines, CX their
// number. R10 and R11 are taken.
func (f *file) heads(name, doc string, body func()) {
	f.fn(name, doc, "", param{"x", floats}, param{"cos", floats}, param{"sin", floats}, param{"heads", "int"},
		param{"stride", "int"})
	f.load("R11", "x_base")
	f.load("R10", "heads")
	if name == "ropePairs" {
		f.op("VMOVUPS twice<>(SB), {14}")
	}

	loop, done := f.label("head"), f.label("end")
	f.at(loop)
	f.op("SUBQ $1, R10")
	f.op("JLT %s", done)
	f.op("MOVQ R11, DI")
	f.load("DX", "cos_base")
	f.load("BX", "sin_base")
	f.load("CX", "cos_len")
	body()
	f.load("AX", "stride")
	f.op("LEAQ (R11)(AX*4), R11")
	f.op("JMP %s", loop)
	f.at(done)
	f.ret()
}

// getHalf loads half a vector; in a tail, the elements that belong to half as many pairs as there are elements
// left in CX.
func (f *file) getHalf(mem string, v int, tail bool) {
	switch {
	case !tail:
		f.op("VMOVUPS %s, {h%d}", mem, v)
	case f.wide():
		f.op("MOVQ CX, AX")
		f.op("SHRQ $1, AX")
		f.op("MOVL $-1, R8")
		f.op("BZHIL AX, R8, R8")
		f.op("KMOVW R8, K2")
		f.op("VMOVUPS.Z %s, K2, {h%d}", mem, v)
	default:
		f.op("LEAQ masks<>+32(SB), AX")
		f.op("ADDQ CX, CX")
		f.op("SUBQ CX, AX")
		f.op("SHRQ $1, CX")
		f.op("VMOVUPS (AX), X13")
		f.op("VMASKMOVPS %s, X13, {h%d}", mem, v)
	}
}
