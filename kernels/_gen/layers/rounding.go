package main

import "fmt"

// encoders writes the loops that round elements to given scales. Groups are of 16 or 32 elements, or of 32.
func encoders(f *file) {
	f.largest()
	f.extremes()
	f.roundGroups()
	f.truncateGroups()
	f.awayGroups()
	f.smallFloats()
	f.extents()
	f.quotients()
	f.wholes()
	f.narrow()
	f.weigh()
}

// largest writes the search for the largest magnitude, as bits: those of a NaN are larger than those of an infinity.
func (f *file) largest() {
	f.fn("largest", "max over i of the bits of |x[i]|", "int", param{"x", floats})
	f.load("SI", "x_base")
	f.op("MOVQ %s, CX", f.arg("x_len"))
	f.immediate(1<<31-1, 0)
	f.zero(1)
	f.zero(2)
	next := f.label("elements")
	f.at(next)
	for i := 0; i < 16; i += f.lanes {
		f.op("VMOVUPS %d(SI), {3}", 4*i)
		f.and(0, 3, 3)
		f.op("VPMAXUD {3}, {%d}, {%d}", 1+i/8%2, 1+i/8%2)
	}
	f.op("ADDQ $64, SI")
	f.op("SUBQ $16, CX")
	f.op("JNZ %s", next)
	f.op("VPMAXUD {2}, {1}, {1}")
	f.across("VPMAXUD", 1, 2)
	f.op("VMOVD X1, AX")
	f.op("MOVQ AX, %s", f.arg("ret"))
	f.ret()
}

// across leaves in lane 0 of v what an operation makes of all lanes. It overwrites t.
func (f *file) across(op string, v, t int) {
	if f.wide() {
		f.op("VEXTRACTF64X4 $1, Z%d, Y%d", v, t)
		f.op("%s Y%d, Y%d, Y%d", op, t, v, v)
	}
	f.op("VEXTRACTF128 $1, Y%d, X%d", v, t)
	f.op("%s X%d, X%d, X%d", op, t, v, v)
	f.op("VPSHUFD $0x4e, X%d, X%d", v, t)
	f.op("%s X%d, X%d, X%d", op, t, v, v)
	f.op("VPSHUFD $0xb1, X%d, X%d", v, t)
	f.op("%s X%d, X%d, X%d", op, t, v, v)
}

// tree leaves in v, and its lane 0, what an operation makes of 32 lanes in registers from v on.
func (f *file) tree(op string, v, t int) {
	for n := 32 / f.lanes / 2; n > 0; n /= 2 {
		for i := range n {
			f.op("%s {%d}, {%d}, {%d}", op, v+i+n, v+i, v+i)
		}
	}
	f.across(op, v, t)
}

// extremes writes the search for the extreme elements of every 32.
func (f *file) extremes() {
	parts := 32 / f.lanes
	f.fn("extremes", "out[i] = the first of the elements of the largest magnitude of x[32·i:][:32]", "",
		param{"x", floats}, param{"out", floats})
	f.load("SI", "x_base")
	f.load("DI", "out_base")
	f.op("MOVQ %s, CX", f.arg("out_len"))
	f.immediate(1<<31-1, 0)
	next := f.label("group")
	f.at(next)
	for i := range parts {
		f.op("VMOVUPS %d(SI), {%d}", i*f.row(), 2+i)
		f.and(0, 2+i, 2+i)
		f.op("VMOVAPS {%d}, {%d}", 2+i, 6+i)
	}
	f.tree("VMAXPS", 2, 10)
	f.op("VBROADCASTSS X2, {2}")
	for i := range parts {
		if f.wide() {
			f.op("VCMPPS $0, {2}, {%d}, K1", 6+i)
			f.op("KMOVW K1, BX")
		} else {
			f.op("VCMPPS $0, {2}, {%d}, {%d}", 6+i, 6+i)
			f.op("VMOVMSKPS {%d}, BX", 6+i)
		}
		if i == 0 {
			f.op("MOVL BX, AX")
			continue
		}
		f.op("SHLL $%d, BX", i*f.lanes)
		f.op("ORL BX, AX")
	}
	f.op("BSFL AX, AX")
	f.op("MOVL (SI)(AX*4), AX")
	f.op("MOVL AX, (DI)")
	f.op("ADDQ $128, SI")
	f.op("ADDQ $4, DI")
	f.op("DECQ CX")
	f.op("JNZ %s", next)
	f.ret()

	f.fn("bounds32", "low[i] and high[i] = the least and the largest element of x[32·i:][:32]", "", param{"x", floats},
		param{"low", floats}, param{"high", floats})
	f.load("SI", "x_base")
	f.load("DI", "low_base")
	f.load("DX", "high_base")
	f.op("MOVQ %s, CX", f.arg("low_len"))
	next = f.label("group")
	f.at(next)
	for i := range parts {
		f.op("VMOVUPS %d(SI), {%d}", i*f.row(), 2+i)
		f.op("VMOVAPS {%d}, {%d}", 2+i, 6+i)
	}
	f.tree("VMINPS", 2, 10)
	f.tree("VMAXPS", 6, 10)
	f.op("VMOVSS X2, (DI)")
	f.op("VMOVSS X6, (DX)")
	f.op("ADDQ $128, SI")
	f.op("ADDQ $4, DI")
	f.op("ADDQ $4, DX")
	f.op("DECQ CX")
	f.op("JNZ %s", next)
	f.ret()
}

// octets stores the lowest bytes of a vector's words, which are bytes with their sign. It overwrites v and t.
func (f *file) octets(v, t int, mem string) {
	if f.wide() {
		f.op("VPMOVDB {%d}, %s", v, mem)
		return
	}
	f.op("VEXTRACTI128 $1, Y%d, X%d", v, t)
	f.op("VPACKSSDW X%d, X%d, X%d", t, v, v)
	f.op("VPACKSSWB X%d, X%d, X%d", v, v, v)
	f.op("VMOVQ X%d, %s", v, mem)
}

// spreadInt copies an int parameter to all lanes. It overwrites AX.
func (f *file) spreadInt(arg string, v int) {
	f.op("MOVQ %s, AX", f.arg(arg))
	f.raw("\tVMOVD AX, X%d", v)
	f.op("VPBROADCASTD X%d, {%d}", v, v)
}

// roundGroups writes rounding to scales and minima.
func (f *file) roundGroups() {
	f.fn("round", "q[i] = clamp(nearest((x[i] + sub[i/n])/mul[i/n]), -half, top - half) + half, unless mul[i/n] = 0", "",
		param{"q", "[]byte"}, param{"x", floats}, param{"mul", floats}, param{"sub", floats}, param{"n", "int"},
		param{"half", "int"}, param{"top", "int"})
	f.load("DI", "q_base")
	f.load("SI", "x_base")
	f.load("DX", "mul_base")
	f.op("MOVQ %s, CX", f.arg("mul_len"))
	f.load("R9", "sub_base")
	f.op("MOVQ %s, BX", f.arg("n"))
	f.roundingConstants()
	f.spreadInt("half", 7)
	f.spreadInt("top", 6)
	f.op("VPSUBD {7}, {6}, {6}")
	f.zero(5)
	f.op("VPSUBD {7}, {5}, {5}")

	next := f.label("group")
	skip := f.label("skip")
	done := f.label("done")
	inner := f.label("elements")
	f.at(next)
	f.op("MOVL (DX), AX")
	f.op("ANDL $0x7fffffff, AX")
	f.op("JZ %s", skip)
	f.op("VBROADCASTSS (DX), {0}")
	f.op("VBROADCASTSS (R9), {1}")
	f.op("XORL R8, R8")
	f.at(inner)
	f.op("VADDPS (SI)(R8*4), {1}, {9}")
	f.op("VDIVPS {0}, {9}, {9}")
	f.nearest(9, 5, 6)
	f.op("VPADDD {7}, {9}, {9}")
	f.octets(9, 10, "(DI)(R8*1)")
	f.op("ADDQ $%d, R8", f.lanes)
	f.op("CMPQ R8, BX")
	f.op("JLT %s", inner)

	f.at(skip)
	f.op("LEAQ (SI)(BX*4), SI")
	f.op("ADDQ BX, DI")
	f.op("ADDQ $4, DX")
	f.op("ADDQ $4, R9")
	f.op("DECQ CX")
	f.op("JNZ %s", next)
	f.at(done)
	f.ret()
}

// eachGroup writes a loop over groups of 32 elements at SI, whose bytes go to DI, with the vectors of scalars broadcast
// to registers from 0 on; begin prepares a group, one leaves the result in 9.
func (f *file) eachGroup(scalars []string, begin, one func()) {
	registers := []string{"DX", "R9"}
	f.load("DI", "q_base")
	f.load("SI", "x_base")
	f.op("MOVQ %s, CX", f.arg("q_len"))
	for i, s := range scalars {
		f.load(registers[i], s+"_base")
	}

	next := f.label("group")
	f.at(next)
	for i := range scalars {
		f.op("VBROADCASTSS (%s), {%d}", registers[i], i)
		f.op("ADDQ $4, %s", registers[i])
	}
	begin()
	for i := 0; i < 32; i += f.lanes {
		f.op("VMOVUPS %d(SI), {9}", 4*i)
		one()
		f.octets(9, 10, fmt.Sprintf("%d(DI)", i))
	}
	f.op("ADDQ $128, SI")
	f.op("ADDQ $32, DI")
	f.op("SUBQ $32, CX")
	f.op("JNZ %s", next)
	f.ret()
}

// lowByte extends the sign of the lowest byte of every word.
func (f *file) lowByte(v int) {
	f.op("VPSLLD $24, {%d}, {%d}", v, v)
	f.op("VPSRAD $24, {%d}, {%d}", v, v)
}

func (f *file) truncateGroups() {
	f.fn("truncate", "q[i] = min(int8(trunc((x[i] - least[i/32])·inverse[i/32] + shift)), top)", "",
		param{"q", "[]byte"}, param{"x", floats}, param{"least", floats}, param{"inverse", floats},
		param{"shift", "float32"}, param{"top", "int"})
	f.spread("shift", 5)
	f.spreadInt("top", 6)
	f.eachGroup([]string{"least", "inverse"}, func() {}, func() {
		f.op("VSUBPS {0}, {9}, {9}")
		f.op("VMULPS {1}, {9}, {9}")
		f.op("VADDPS {5}, {9}, {9}")
		f.op("VCVTTPS2DQ {9}, {9}")
		f.lowByte(9)
		f.op("VPMINSD {6}, {9}, {9}")
	})
}

func (f *file) awayGroups() {
	f.fn("away", "q[i] = int8(x[i]·inverse[i/32]), rounded to nearest with ties away from 0", "", param{"q", "[]byte"},
		param{"x", floats}, param{"inverse", floats})
	f.immediate(1<<31-1, 5)
	f.immediate(0x3f000000, 6)
	f.immediate(0x3f800000, 7)
	f.eachGroup([]string{"inverse"}, func() {}, func() {
		f.op("VMULPS {0}, {9}, {9}")
		if f.wide() {
			f.op("VRNDSCALEPS $3, {9}, {10}")
		} else {
			f.op("VROUNDPS $3, {9}, {10}")
		}
		f.op("VSUBPS {10}, {9}, {11}")
		f.and(5, 11, 12)
		f.compare(13, 12, 6, 0) // not below one half
		f.op("VANDNPS {9}, {5}, {12}")
		f.op("VORPS {7}, {12}, {12}")
		f.op("VADDPS {10}, {12}, {12}")
		f.where(0, 12, 10)
		f.op("VCVTTPS2DQ {10}, {9}")
		f.lowByte(9)
	})
}

// smallFloats writes rounding to floats of four bits.
func (f *file) smallFloats() {
	f.fn("e2m1", "q[i] = the code of the value nearest to x[i]/d[i/32], doubled", "", param{"q", "[]byte"},
		param{"x", floats}, param{"d", floats})
	f.immediate(1<<31-1, 5)
	f.immediate(1, 6)
	f.immediate(8, 7)

	// Half way between the values.
	middles := []float64{.5, 1.5, 2.5, 3.5, 5, 7, 10}
	registers := []int{1, 2, 3, 4, 8, 13, 14}
	f.eachGroup([]string{"d"}, func() {
		for i, middle := range middles {
			f.immediate(int(float(middle)), registers[i])
			f.op("VMULPS {0}, {%d}, {%d}", registers[i], registers[i])
		}
	}, func() {
		f.and(5, 9, 10)
		f.zero(11)
		for _, r := range registers {
			f.compare(greater, 10, r, 0)
			f.op("VPADDD {6}, {11}, {12}")
			f.where(0, 12, 11)
		}
		f.op("VPSRAD $31, {9}, {9}")
		f.and(7, 9, 9)
		f.zero(12)
		if f.wide() {
			f.op("VPCMPEQD {12}, {11}, K1")
		} else {
			f.op("VPCMPEQD {12}, {11}, Y15")
		}
		f.where(0, 12, 9)
		f.op("VPOR%s {11}, {9}, {9}", f.suffixD())
	})
}

// narrow writes conversions to 16 bits.
func (f *file) narrow() {
	f.fn("narrowF16", "for i { dst[i] = half(x[i]) }", "", param{"dst", "[]byte"}, param{"x", floats})
	f.load("DI", "dst_base")
	f.load("SI", "x_base")
	f.op("MOVQ %s, CX", f.arg("x_len"))
	next := f.label("elements")
	f.at(next)
	for i := 0; i < 16; i += f.lanes {
		f.op("VMOVUPS %d(SI), {1}", 4*i)
		f.op("VCVTPS2PH $0, {1}, %d(DI)", 2*i)
	}
	f.op("ADDQ $64, SI")
	f.op("ADDQ $32, DI")
	f.op("SUBQ $16, CX")
	f.op("JNZ %s", next)
	f.ret()

	f.fn("narrowBF16", "for i { dst[i] = bfloat16(x[i]) }, of numbers", "", param{"dst", "[]byte"}, param{"x", floats})
	f.load("DI", "dst_base")
	f.load("SI", "x_base")
	f.op("MOVQ %s, CX", f.arg("x_len"))
	f.immediate(0x7fff, 5)
	f.immediate(1, 6)
	next = f.label("elements")
	f.at(next)
	for i := 0; i < 16; i += f.lanes {
		f.op("VMOVUPS %d(SI), {1}", 4*i)
		f.op("VPSRLD $16, {1}, {2}")
		f.and(6, 2, 2)
		f.op("VPADDD {5}, {1}, {1}")
		f.op("VPADDD {2}, {1}, {1}")
		f.op("VPSRLD $16, {1}, {1}")
		if f.wide() {
			f.op("VPMOVDW {1}, %d(DI)", 2*i)
			continue
		}
		f.op("VEXTRACTI128 $1, Y1, X2")
		f.op("VPACKUSDW X2, X1, X1")
		f.op("VMOVDQU X1, %d(DI)", 2*i)
	}
	f.op("ADDQ $64, SI")
	f.op("ADDQ $32, DI")
	f.op("SUBQ $16, CX")
	f.op("JNZ %s", next)
	f.ret()
}

// weigh writes the weights with an importance.
func (f *file) weigh() {
	f.fn("weigh", "for i { weights[i] = importance[i]·√(square + x[i]²) }", "", param{"weights", floats},
		param{"x", floats}, param{"importance", floats}, param{"square", "float32"})
	f.load("DI", "weights_base")
	f.load("SI", "x_base")
	f.load("DX", "importance_base")
	f.op("MOVQ %s, CX", f.arg("x_len"))
	f.spread("square", 5)
	next := f.label("elements")
	f.at(next)
	for i := 0; i < 16; i += f.lanes {
		f.op("VMOVUPS %d(SI), {1}", 4*i)
		f.op("VMULPS {1}, {1}, {1}")
		f.op("VADDPS {1}, {5}, {1}")
		f.op("VSQRTPS {1}, {1}")
		f.op("VMULPS %d(DX), {1}, {1}", 4*i)
		f.op("VMOVUPS {1}, %d(DI)", 4*i)
	}
	f.op("ADDQ $64, SI")
	f.op("ADDQ $64, DX")
	f.op("ADDQ $64, DI")
	f.op("SUBQ $16, CX")
	f.op("JNZ %s", next)
	f.ret()
}

// extents writes the search for the extremes of groups.
func (f *file) extents() {
	f.fn("extents", "low[i] and high[i] = the least and the largest element of x[group·i:][:group] and 0", "",
		param{"low", floats}, param{"high", floats}, param{"x", floats}, param{"group", "int"})
	f.load("DX", "low_base")
	f.load("R9", "high_base")
	f.load("DI", "x_base")
	f.eachRun("x_len", func() {
		f.zero(0)
		f.zero(1)
	}, func() {
		f.op("VMOVUPS (DI), {2}")
		f.op("VMINPS {2}, {0}, {0}")
		f.op("VMAXPS {2}, {1}, {1}")
		f.op("ADDQ $%d, DI", f.row())
	}, func() {
		f.across("VMINPS", 0, 2)
		f.across("VMAXPS", 1, 2)
		f.op("VMOVSS X0, (DX)")
		f.op("VMOVSS X1, (R9)")
		f.op("ADDQ $4, DX")
		f.op("ADDQ $4, R9")
	})
}

// quotients writes the division of groups by their scales.
func (f *file) quotients() {
	f.fn("quotients", "for i { x[i] /= by[i/group] }", "", param{"x", floats}, param{"by", floats}, param{"group", "int"})
	f.load("DI", "x_base")
	f.load("DX", "by_base")
	f.eachRun("x_len", func() {
		f.op("VBROADCASTSS (DX), {0}")
		f.op("ADDQ $4, DX")
	}, func() {
		f.op("VMOVUPS (DI), {9}")
		f.op("VDIVPS {0}, {9}, {9}")
		f.op("VMOVUPS {9}, (DI)")
		f.op("ADDQ $%d, DI", f.row())
	}, func() {})
}

// wholes writes the rounding of quotients to whole numbers, and what these stand for.
func (f *file) wholes() {
	f.fn("wholes", "for i { q[i] = nearest(clamp(x[i], low, high)); x[i] = (q[i] - zero[i/group])·scale[i/group] }", "",
		param{"q", octets}, param{"x", floats}, param{"scale", floats}, param{"zero", floats}, param{"group", "int"},
		param{"low", "float32"}, param{"high", "float32"})
	f.load("SI", "q_base")
	f.load("DI", "x_base")
	f.load("DX", "scale_base")
	f.load("R9", "zero_base")
	f.spread("low", 5)
	f.spread("high", 6)
	f.eachRun("x_len", func() {
		f.op("VBROADCASTSS (DX), {0}")
		f.op("VBROADCASTSS (R9), {1}")
		f.op("ADDQ $4, DX")
		f.op("ADDQ $4, R9")
	}, func() {
		f.op("VMAXPS (DI), {5}, {9}")
		f.op("VMINPS {6}, {9}, {9}")
		f.op("VCVTPS2DQ {9}, {9}") // to nearest, of two the even one
		f.op("VCVTDQ2PS {9}, {10}")
		f.op("VSUBPS {1}, {10}, {10}")
		f.op("VMULPS {0}, {10}, {10}")
		f.op("VMOVUPS {10}, (DI)")
		f.octets(9, 10, "(SI)")
		f.op("ADDQ $%d, SI", f.lanes)
		f.op("ADDQ $%d, DI", f.row())
	}, func() {})
}

// eachRun writes a loop over groups of the parameter group's size, a multiple of 16: begin prepares one, one works on
// a register of it, end finishes it.
func (f *file) eachRun(length string, begin, one, end func()) {
	f.op("MOVQ %s, CX", f.arg(length))
	f.op("MOVQ %s, BX", f.arg("group"))

	outer := f.label("group")
	inner := f.label("elements")
	f.at(outer)
	begin()
	f.op("MOVQ BX, R8")
	f.at(inner)
	one()
	f.op("SUBQ $%d, R8", f.lanes)
	f.op("JNZ %s", inner)
	end()
	f.op("SUBQ BX, CX")
	f.op("JNZ %s", outer)
	f.ret()
}
