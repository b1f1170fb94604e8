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
	f.fn("rope", "for i { a[i], b[i] = a[i]·cos[i] - b[i]·sin[i], b[i]·cos[i] + a[i]·sin[i] }", "",
		param{"a", floats}, param{"b", floats}, param{"cos", floats}, param{"sin", floats})
	f.pointers("a", "b", "cos", "sin")
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
	f.ret()

	f.fn("ropePairs", "for i { a, b := x[2i], x[2i+1]; x[2i], x[2i+1] = a·cos[i] - b·sin[i], b·cos[i] + a·sin[i] }", "",
		param{"x", floats}, param{"cos", floats}, param{"sin", floats})
	f.pointers("x", "cos", "sin")
	f.op("VMOVUPS twice<>(SB), {14}")
	f.loop(map[string]int{"DI": 4 * f.lanes, "SI": 2 * f.lanes, "DX": 2 * f.lanes}, func(tail bool) {
		f.get("(DI)", 0, tail)
		f.getHalf("(SI)", 1, tail)
		f.getHalf("(DX)", 2, tail)
		f.op("VPERMPS {1}, {14}, {1}")
		f.op("VPERMPS {2}, {14}, {2}")
		f.op("VPERMILPS $0xb1, {0}, {3}")
		f.op("VMULPS {2}, {3}, {3}")
		f.op("VFMADDSUB213PS {3}, {1}, {0}") // even lanes subtract
		f.put(0, "(DI)", tail)
	})
	f.ret()
}

// getHalf loads half a vector; in a tail, the elements that belong to half as many pairs as there are lanes left in CX.
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
