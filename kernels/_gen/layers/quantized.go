package main

// quantised writes the loops of package quantized, which run over chunks that stay in the first-level cache. Lengths
// are multiples of 16 elements, so that there are no tails.
func quantised(f *file) {
	f.fn("scale", "for i { dst[i] = mul[i/group] · q[i] }", "", param{"dst", floats}, param{"q", octets},
		param{"mul", floats}, param{"group", "int"})
	f.scales((*file).sixteen, 64)

	f.fn("affine", "for i { dst[i] = mul[i/group] · q[i] - sub[i/group] }", "", param{"dst", floats},
		param{"q", octets}, param{"mul", floats}, param{"sub", floats}, param{"group", "int"})
	f.affine((*file).sixteen, 64)

	f.fn("scaleBF16", "for i { dst[i] = bfloat16(mul[i/group] · q[i]) }, with dst of two bytes each", "",
		param{"dst", octets}, param{"q", octets}, param{"mul", floats}, param{"group", "int"})
	f.halving()
	f.scales((*file).sixteenHalves, 32)

	f.fn("affineBF16", "for i { dst[i] = bfloat16(mul[i/group] · q[i] - sub[i/group]) }, with dst of two bytes each", "",
		param{"dst", octets}, param{"q", octets}, param{"mul", floats}, param{"sub", floats}, param{"group", "int"})
	f.halving()
	f.affine((*file).sixteenHalves, 32)

	f.fn("translate", "for i { q[i] = table[q[i]] }", "", param{"q", octets}, param{"table", "*[16]int8"})
	f.load("SI", "q_base")
	f.load("CX", "q_len")
	f.load("AX", "table")
	f.raw("\tVBROADCASTI128 (AX), Y0") // of 32 bytes on every processor: blocks are no multiples of 64
	next := f.label("translate")
	f.at(next)
	f.raw("\tVMOVDQU (SI), Y1")
	f.raw("\tVPSHUFB Y1, Y0, Y1")
	f.raw("\tVMOVDQU Y1, (SI)")
	f.op("ADDQ $32, SI")
	f.op("SUBQ $32, CX")
	f.op("JNZ %s", next)
	f.ret()

	for _, w := range []struct{ name, doc string }{
		{"widenF16", "for i { dst[i] = float32(x[i]) }, x being IEEE halves"},
		{"widenBF16", "for i { dst[i] = float32(x[i]) }, x being bfloat16"},
	} {
		f.fn(w.name, w.doc, "", param{"dst", floats}, param{"x", octets})
		f.load("DI", "dst_base")
		f.load("CX", "dst_len")
		f.load("SI", "x_base")
		next := f.label(w.name)
		f.at(next)
		f.sixteen(func(i, v int) {
			if w.name == "widenF16" {
				f.op("VCVTPH2PS %d(SI), {%d}", 2*i, v)
				return
			}
			f.op("VPMOVZXWD %d(SI), {%d}", 2*i, v)
			f.op("VPSLLD $16, {%d}, {%d}", v, v)
		})
		f.op("ADDQ $32, SI")
		f.op("ADDQ $64, DI")
		f.op("SUBQ $16, CX")
		f.op("JNZ %s", next)
		f.ret()
	}
}

// rounding writes the loops that round float32 in place to what 16 bits hold, nearest with ties to even. NaNs stay NaNs
// as far as multiplications make them, which is all that is asked.
func rounding(f *file) {
	f.fn("roundF16", "for i { x[i] = float32(half(x[i])) }", "", param{"x", floats})
	f.inPlace(func(v int) {
		f.op("VCVTPS2PH $0, {%d}, {h%d}", v, v)
		f.op("VCVTPH2PS {h%d}, {%d}", v, v)
	})

	f.fn("roundBF16", "for i { x[i] = float32(bfloat16(x[i])) }", "", param{"x", floats})
	f.immediate(0x7fff, 13)
	f.immediate(1, 14)
	f.inPlace(func(v int) {
		f.op("VPSRLD $16, {%d}, {4}", v)
		if f.wide() {
			f.op("VPANDD {14}, {4}, {4}")
		} else {
			f.op("VPAND {14}, {4}, {4}")
		}
		f.op("VPADDD {13}, {%d}, {%d}", v, v)
		f.op("VPADDD {4}, {%d}, {%d}", v, v)
		f.op("VPSRLD $16, {%d}, {%d}", v, v)
		f.op("VPSLLD $16, {%d}, {%d}", v, v)
	})
}

// immediate copies a number to all lanes. It overwrites AX.
func (f *file) immediate(n, v int) {
	f.op("MOVL $%d, AX", n)
	f.raw("\tVMOVD AX, X%d", v)
	f.op("VPBROADCASTD X%d, {%d}", v, v)
}

// inPlace writes a loop over x, 16 elements at a time.
func (f *file) inPlace(apply func(v int)) {
	f.load("DI", "x_base")
	f.load("CX", "x_len")
	next := f.label("elements")
	f.at(next)
	f.sixteen(func(i, v int) {
		f.op("VMOVUPS %d(DI), {%d}", 4*i, v)
		apply(v)
	})
	f.op("ADDQ $64, DI")
	f.op("SUBQ $16, CX")
	f.op("JNZ %s", next)
	f.ret()
}

const octets = "[]byte"

// scales writes the loop of scale, whose sixteen elements become so many bytes.
func (f *file) scales(sixteen func(f *file, one func(i, v int)), bytes int) {
	f.groups(func() {
		f.op("VBROADCASTSS (DX), {0}")
		f.op("ADDQ $4, DX")
	}, func(v int) { f.op("VMULPS {0}, {%d}, {%d}", v, v) }, sixteen, bytes)
}

// affine writes the loop of affine.
func (f *file) affine(sixteen func(f *file, one func(i, v int)), bytes int) {
	f.load("R9", "sub_base")
	f.groups(func() {
		f.op("VBROADCASTSS (DX), {0}")
		f.op("VBROADCASTSS (R9), {1}")
		f.op("ADDQ $4, DX")
		f.op("ADDQ $4, R9")
	}, func(v int) {
		// Two operations with a rounding each: the reference fuses nothing.
		f.op("VMULPS {0}, {%d}, {%d}", v, v)
		f.op("VSUBPS {1}, {%d}, {%d}", v, v)
	}, sixteen, bytes)
}

// halving puts the numbers that [file.toBF16] needs into registers.
func (f *file) halving() {
	f.immediate(0x7fff, 13)
	f.immediate(1, 14)
}

// toBF16 makes the bits of a bfloat16 of those of each float32 of a register, nearest with ties to even. There are no NaNs.
func (f *file) toBF16(v int) {
	f.op("VPSRLD $16, {%d}, {4}", v)
	if f.wide() {
		f.op("VPANDD {14}, {4}, {4}")
	} else {
		f.op("VPAND {14}, {4}, {4}")
	}
	f.op("VPADDD {13}, {%d}, {%d}", v, v)
	f.op("VPADDD {4}, {%d}, {%d}", v, v)
	f.op("VPSRLD $16, {%d}, {%d}", v, v)
}

// sixteenHalves is sixteen for elements that become bfloat16.
func (f *file) sixteenHalves(one func(i, v int)) {
	for i := 0; i < 16; i += f.lanes {
		v := 2 + i/f.lanes
		one(i, v)
		f.toBF16(v)
	}
	if f.wide() {
		f.op("VPMOVDW {2}, 0(DI)")
		return
	}
	// The two halves of a register are packed apart: the second and the third quarter change places.
	f.op("VPACKUSDW {3}, {2}, {2}")
	f.op("VPERMQ $0xd8, {2}, {2}")
	f.op("VMOVUPS {2}, 0(DI)")
}

// groups writes the loop over int8 q, group by group: begin prepares a group, apply works on a register of numbers, of
// which sixteen become so many bytes.
func (f *file) groups(begin func(), apply func(v int), sixteen func(f *file, one func(i, v int)), bytes int) {
	f.load("DI", "dst_base")
	f.load("CX", "q_len") // as many as elements of dst
	f.load("SI", "q_base")
	f.load("DX", "mul_base")
	f.load("BX", "group")

	outer := f.label("group")
	f.at(outer)
	begin()
	f.op("MOVQ BX, R8")

	inner := f.label("elements")
	f.at(inner)
	sixteen(f, func(i, v int) {
		f.op("VPMOVSXBD %d(SI), {%d}", i, v)
		f.op("VCVTDQ2PS {%d}, {%d}", v, v)
		apply(v)
	})
	f.op("ADDQ $16, SI")
	f.op("ADDQ $%d, DI", bytes)
	f.op("SUBQ $16, R8")
	f.op("JNZ %s", inner)

	f.op("SUBQ BX, CX")
	f.op("JNZ %s", outer)
	f.ret()
}

// sixteen writes 16 elements: one computes the register of those from i on, which go to DI.
func (f *file) sixteen(one func(i, v int)) {
	for i := 0; i < 16; i += f.lanes {
		v := 2 + i/f.lanes
		one(i, v)
		f.op("VMOVUPS {%d}, %d(DI)", v, 4*i)
	}
}
