package main

// reductions writes the loops that sum in float64 or look for the highest value.
func reductions(f *file) {
	f.fn("sum", "for i { ret += x[i] }", "float64", param{"x", floats})
	f.sumLoop(nil, func(v, sum int, _ bool) { f.op("VADDPD {%d}, {%d}, {%d}", v, sum, sum) })

	f.fn("sumSq", "for i { ret += x[i]² }", "float64", param{"x", floats})
	f.sumLoop(nil, func(v, sum int, _ bool) { f.op("VFMADD231PD {%d}, {%d}, {%d}", v, v, sum) })

	f.fn("sumSqDev", "for i { ret += (x[i] - mean)² }", "float64", param{"x", floats}, param{"mean", "float64"})
	f.sumLoop(func() { f.op("VBROADCASTSD %s, {12}", f.arg("mean")) }, func(v, sum int, tail bool) {
		f.op("VSUBPD {12}, {%d}, {%d}", v, v)
		if tail {
			f.clearHalf(v, v-1)
		}
		f.op("VFMADD231PD {%d}, {%d}, {%d}", v, v, sum)
	})

	topLoop(f)
	expLoops(f)
}

// sumLoop runs add for the lower and upper half of every vector, widened to float64, with the sums in registers
// 8 to 11, and returns the total. Four sums hide the latency of the additions; in a tail the halves are in 1
// and 2.
func (f *file) sumLoop(prepare func(), add func(v, sum int, tail bool)) {
	f.load("SI", "x_base")
	f.load("CX", "x_len")
	if prepare != nil {
		prepare()
	}
	for v := 8; v < 12; v++ {
		f.zero(v)
	}

	pair, rest := f.label("pair"), f.label("rest")
	f.op("SUBQ $%d, CX", 2*f.lanes)
	f.op("JLT %s", rest)
	f.at(pair)

	for i := range 4 {
		f.op("VCVTPS2PD %s, {%d}", offset(2*f.lanes*i, "SI"), 1+i)
		add(1+i, 8+i, false)
	}

	f.op("ADDQ $%d, SI", 8*f.lanes)
	f.op("SUBQ $%d, CX", 2*f.lanes)
	f.op("JGE %s", pair)
	f.at(rest)
	f.op("ADDQ $%d, CX", 2*f.lanes)
	f.loop(map[string]int{"SI": 4 * f.lanes}, func(tail bool) {
		f.get("(SI)", 0, tail)
		f.widenHalves()
		add(1, 8, tail)
		add(2, 9, tail)
	})

	f.op("VADDPD {10}, {8}, {8}")
	f.op("VADDPD {11}, {9}, {9}")
	f.total()
	f.ret()
}

// widenHalves puts the halves of register 0 into 1 and 2 as float64.
func (f *file) widenHalves() {
	f.op("VCVTPS2PD {h0}, {1}")
	if f.wide() {
		f.op("VEXTRACTF32X8 $1, Z0, Y2")
	} else {
		f.op("VEXTRACTF128 $1, Y0, X2")
	}
	f.op("VCVTPS2PD {h2}, {2}")
}

// clearHalf zeroes the float64 lanes past the end.
func (f *file) clearHalf(v, half int) {
	if f.wide() {
		if half == 1 {
			f.op("KSHIFTRW $8, K1, K2")
			f.op("VMOVAPD.Z {%d}, K2, {%d}", v, v)
		} else {
			f.op("VMOVAPD.Z {%d}, K1, {%d}", v, v)
		}

		return
	}

	f.op("VEXTRACTF128 $%d, {%d}, X3", half, mask)
	f.op("VPMOVSXDQ X3, Y3")
	f.op("VANDPD Y3, {%d}, {%d}", v, v)
}

// total stores the sum of the float64 lanes of registers 8 and 9 as the result.
func (f *file) total() { f.totalTo(8, 9, f.arg("ret")) }

// totalTo stores the sum of the float64 lanes of two registers.
func (f *file) totalTo(a, b int, mem string) {
	f.op("VADDPD {%d}, {%d}, {%d}", b, a, a)

	if f.wide() {
		f.op("VEXTRACTF64X4 $1, Z%d, Y%d", a, b)
		f.op("VADDPD Y%d, Y%d, Y%d", b, a, a)
	}

	f.op("VEXTRACTF128 $1, Y%d, X%d", a, b)
	f.op("VADDPD X%d, X%d, X%d", b, a, a)
	f.op("VPERMILPD $1, X%d, X%d", a, b)
	f.op("VADDSD X%d, X%d, X%d", b, a, a)
	f.op("VMOVSD X%d, %s", a, mem)
}

// topLoop finds the highest value; comparisons with NaN keep what was found so far.
func topLoop(f *file) {
	f.fn("top", "ret = -Inf; for i { if x[i] > ret { ret = x[i] } }", "float32", param{"x", floats})
	f.load("SI", "x_base")
	f.load("CX", "x_len")
	for v := 8; v < 12; v++ {
		f.set("minusinf", v)
	}

	loop4, rest := f.label("four"), f.label("rest")
	f.op("SUBQ $%d, CX", 4*f.lanes)
	f.op("JLT %s", rest)
	f.at(loop4)

	for i := range 4 {
		f.get(offset(4*f.lanes*i, "SI"), i, false)
		f.op("VMAXPS {%d}, {%d}, {%d}", 8+i, i, 8+i)
	}

	f.op("ADDQ $%d, SI", 16*f.lanes)
	f.op("SUBQ $%d, CX", 4*f.lanes)
	f.op("JGE %s", loop4)
	f.at(rest)
	f.op("ADDQ $%d, CX", 4*f.lanes)
	f.loop(map[string]int{"SI": 4 * f.lanes}, func(tail bool) {
		switch {
		case !tail:
			f.get("(SI)", 0, false)
		case f.wide():
			f.set("minusinf", 0)
			f.op("VMOVUPS (SI), K1, {0}")
		default:
			f.get("(SI)", 0, true)
			f.set("minusinf", 1)
			f.op("VBLENDVPS {%d}, {0}, {1}, {0}", mask)
		}

		f.op("VMAXPS {8}, {0}, {8}")
	})

	f.op("VMAXPS {9}, {8}, {8}")
	f.op("VMAXPS {11}, {10}, {10}")
	f.op("VMAXPS {10}, {8}, {8}")

	if f.wide() {
		f.op("VEXTRACTF32X8 $1, Z8, Y9")
		f.op("VMAXPS Y9, Y8, Y8")
	}

	f.op("VEXTRACTF128 $1, Y8, X9")
	f.op("VMAXPS X9, X8, X8")
	f.op("VPERMILPS $0x4e, X8, X9")
	f.op("VMAXPS X9, X8, X8")
	f.op("VPERMILPS $0xb1, X8, X9")
	f.op("VMAXPS X9, X8, X8")
	f.op("VMOVSS X8, %s", f.arg("ret"))
	f.ret()
}

// expLoops write exponentials relative to a highest value, and sum them.
func expLoops(f *file) {
	for _, store := range []bool{true, false} {
		if store {
			f.fn("exp", "for i { dst[i] = exp(x[i] - top); ret += dst[i] }", "float64", param{"dst", floats},
				param{"x", floats}, param{"top", "float32"})
			f.load("DI", "dst_base")
		} else {
			f.fn("expSum", "for i { ret += exp(x[i] - top) }", "float64", param{"x", floats}, param{"top", "float32"})
		}

		f.load("SI", "x_base")
		f.load("CX", "x_len")
		f.spread("top", 12)
		f.set("expmin", lowLimit)
		f.zero(8)
		f.zero(9)
		pointers := map[string]int{"SI": 4 * f.lanes}
		if store {
			pointers["DI"] = 4 * f.lanes
		}

		one := func(tail bool) {
			f.get("(SI)", 0, tail)
			f.op("VSUBPS {12}, {0}, {0}")
			f.expNegative(0, lowLimit, 1, 2, 3)
			if tail {
				f.clearTail(0)
			}
			if store {
				f.put(0, "(DI)", tail)
			}
		}

		f.loopFour(pointers, one, func() {
			f.op("VADDPS {11}, {10}, {0}")
			f.widenHalves()
			f.op("VADDPD {1}, {8}, {8}")
			f.op("VADDPD {2}, {9}, {9}")
		})

		f.total()
		f.ret()
	}
}

// loopFour runs one for four vectors at a time, adds their registers 0 in pairs into 10 and 11 and runs fold:
// sums of four float32 lose too little to matter, and float64 sums cost a quarter. One vector at a time is left
// for the rest.
func (f *file) loopFour(pointers map[string]int, one func(tail bool), fold func()) {
	advance := func() {
		for _, r := range []string{"DI", "SI"} {
			if n := pointers[r]; n > 0 {
				f.op("ADDQ $%d, %s", n, r)
			}
		}
	}

	four, rest := f.label("four"), f.label("rest")
	f.op("SUBQ $%d, CX", 4*f.lanes)
	f.op("JLT %s", rest)
	f.at(four)

	for i := range 4 {
		one(false)
		advance()

		sum := 10 + i%2
		if i < 2 {
			f.op("VMOVAPS {0}, {%d}", sum)
		} else {
			f.op("VADDPS {0}, {%d}, {%d}", sum, sum)
		}
	}

	fold()
	f.op("SUBQ $%d, CX", 4*f.lanes)
	f.op("JGE %s", four)
	f.at(rest)
	f.op("ADDQ $%d, CX", 4*f.lanes)
	f.zero(11)
	f.loop(pointers, func(tail bool) {
		one(tail)
		f.op("VMOVAPS {0}, {10}")
		fold()
	})
}
