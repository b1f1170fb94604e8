package main

// gradients writes the vector loops of the backward pass.
func gradients(f *file) {
	for _, s := range slopes {
		slopeLoops(f, s)
	}

	softGradLoops(f)
	squareLoop(f)
	dotLoop(f)
	sumIntoLoops(f)
	momentsLoop(f)
	normGradLoop(f)
	scoresLoop(f)
}

// slope is the derivative of an activation: x in register 0 is replaced by f'(x), and f(x) put into register 10.
type slope struct {
	name, doc string
	limits    func(*file)
	body      func(*file)
}

var slopes = []slope{
	{"silu", "x·p, p·(1 + x·(1 - p)), p = 1 / (1 + exp(-x))", func(f *file) {
		f.set("expmin", lowLimit)
		f.set("expmax",
			highLimit)
	}, siluSlope},
	{"gelu", "x·Φ(x), Φ(x) + x·Φ'(x)", func(f *file) {
		f.set("expmin", lowLimit)
		f.set("gmax",
			highLimit)
		f.set("gmin", 12)
	}, geluSlope},
	{
		"geluTanh", "x·p, p·(1 + x·(1 - p)·v'), p = 1 / (1 + exp(-v)), v = 2·√(2/π)·(x + 0.044715·x³)",
		func(f *file) { f.set("gtmin", lowLimit); f.set("gtmax", highLimit) }, geluTanhSlope,
	},
	{"relu", "max(x, 0), x > 0", func(f *file) { f.zero(lowLimit); f.set("one", highLimit) }, reluSlope},
}

func slopeLoops(f *file, s slope) {
	f.fn(s.name+"Slope", "for i { dx[i] = dy[i] · f'(x[i]) }; f, f' = "+s.doc, "", param{"dx", floats},
		param{"dy", floats}, param{"x", floats})
	f.pointers("dx", "dy", "x")
	s.limits(f)
	f.loop(f.streams(3), func(tail bool) {
		f.get("(DX)", 0, tail)
		s.body(f)
		f.get("(SI)", 1, tail)
		f.op("VMULPS {1}, {0}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()

	f.fn(s.name+"GateSlope",
		"for i { dg[i], du[i] = dy[i] · u[i] · f'(g[i]), dy[i] · f(g[i]) }; f, f' = "+s.doc+" at g", "",
		param{"dg", floats}, param{"du", floats}, param{"dy", floats}, param{"g", floats}, param{"u", floats})
	f.pointers("dg", "du", "dy", "g", "u")
	s.limits(f)
	f.loop(f.streams(5), func(tail bool) {
		f.get("(BX)", 0, tail)
		s.body(f)
		f.get("(DX)", 1, tail)
		f.get("(R8)", 2, tail)
		f.op("VMULPS {1}, {10}, {10}")
		f.op("VMULPS {1}, {2}, {2}")
		f.op("VMULPS {2}, {0}, {0}")
		f.put(0, "(DI)", tail)
		f.put(10, "(SI)", tail)
	})

	f.ret()
}

// clampX puts x between the limits into register 9; NaN stays NaN.
func (f *file) clampX() {
	f.op("VMINPS {0}, {%d}, {9}", highLimit)
	f.op("VMAXPS {9}, {%d}, {9}", lowLimit)
}

// sigmoid takes e = exp(-v) in register 1, |v| ≤ 87, and puts p = 1/(1 + e) into 2, or 0 where x is below the
// lower limit, and 1 - p = e·p into 3.
func (f *file) sigmoid() {
	f.expNormal(1, 2, 3)

	if f.wide() {
		f.op("VSCALEFPS {2}, {3}, {1}")
	} else {
		f.op("VMULPS {2}, {3}, {1}")
	}

	f.set("one", 4)
	f.op("VADDPS {4}, {1}, {4}")

	if f.wide() {
		f.op("VCMPPS $5, {%d}, {0}, K3", lowLimit) // not less: NaN is kept
		f.reciprocal(4, 2, 3)
		f.op("VMULPS {1}, {2}, {3}")
		f.op("VMOVAPS.Z {2}, K3, {2}")
		return
	}

	f.op("VCMPPS $5, {%d}, {0}, {5}", lowLimit)
	f.set("one", 2)
	f.op("VDIVPS {4}, {2}, {2}")
	f.op("VMULPS {1}, {2}, {3}")
	f.op("VANDPS {5}, {2}, {2}")
}

func siluSlope(f *file) {
	f.clampX()
	f.opc("VXORPS", "sign", "{9}, {1}")
	f.sigmoid()
	f.op("VMULPS {2}, {0}, {10}")
	f.opc("VFMADD213PS", "one", "{3}, {9}")
	f.op("VMULPS {2}, {9}, {0}")
}

func geluTanhSlope(f *file) {
	f.clampX()
	f.op("VMULPS {9}, {9}, {6}")
	f.set("gt3", 1)
	f.opc("VFMADD213PS", "gt1", "{6}, {1}")
	f.op("VMULPS {9}, {1}, {1}")
	f.sigmoid()
	f.op("VMULPS {2}, {0}, {10}")
	f.set("gs3", 1)
	f.opc("VFMADD213PS", "gs1", "{6}, {1}")
	f.op("VMULPS {1}, {9}, {9}")
	f.opc("VFMADD213PS", "one", "{3}, {9}")
	f.op("VMULPS {2}, {9}, {0}")
}

func geluSlope(f *file) {
	f.normal(11)
	f.op("VMINPS {0}, {%d}, {9}", highLimit)
	f.op("VMAXPS {9}, {12}, {9}")
	f.op("VMULPS {2}, {0}, {10}")
	f.opc("VMULPS", "density", "{11}, {11}")
	f.op("VMOVAPS {2}, {0}")
	f.op("VFMADD231PS {11}, {9}, {0}")
}

func reluSlope(f *file) {
	f.op("VMAXPS {0}, {%d}, {10}", lowLimit)
	if f.wide() {
		f.op("VCMPPS $6, {%d}, {0}, K3", lowLimit) // not less or equal
		f.op("VMOVAPS.Z {%d}, K3, {0}", highLimit)
		return
	}
	f.op("VCMPPS $6, {%d}, {0}, {0}", lowLimit)
	f.op("VANDPS {%d}, {0}, {0}", highLimit)
}

func softGradLoops(f *file) {
	f.fn("softcapSlope", "for i { dx[i] = dy[i] · (1 - (y[i]·r)²) }", "",
		param{"dx", floats}, param{"dy", floats}, param{"y", floats}, param{"r", "float32"})
	f.pointers("dx", "dy", "y")
	f.spread("r", 4)
	f.set("one", 5)
	f.loop(f.streams(3), func(tail bool) {
		f.get("(SI)", 0, tail)
		f.get("(DX)", 1, tail)
		f.op("VMULPS {4}, {1}, {1}")
		f.op("VMOVAPS {5}, {2}")
		f.op("VFNMADD231PS {1}, {1}, {2}")
		f.op("VMULPS {2}, {0}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()

	f.fn("softmaxSlope", "for i { dx[i] = y[i] · (dy[i] - sum) }", "",
		param{"dx", floats}, param{"dy", floats}, param{"y", floats}, param{"sum", "float32"})
	f.pointers("dx", "dy", "y")
	f.spread("sum", 4)
	f.loop(f.streams(3), func(tail bool) {
		f.get("(SI)", 0, tail)
		f.get("(DX)", 1, tail)
		f.op("VSUBPS {4}, {0}, {0}")
		f.op("VMULPS {1}, {0}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()
}

func squareLoop(f *file) {
	f.fn("addSquare", "for i { acc[i] += (scale·x[i])² }", "", param{"acc", floats}, param{"x", floats},
		param{"scale", "float32"})
	f.pointers("acc", "x")
	f.spread("scale", 4)
	f.loop(f.streams(2), func(tail bool) {
		f.get("(SI)", 0, tail)
		f.get("(DI)", 1, tail)
		f.op("VMULPS {4}, {0}, {0}")
		f.op("VFMADD231PS {0}, {0}, {1}")
		f.put(1, "(DI)", tail)
	})

	f.ret()
}

// dotLoop keeps four sums in registers 8 to 11; the products of widened floats are exact.
func dotLoop(f *file) {
	f.fn("dot", "for i { ret += x[i]·y[i] }", "float64", param{"x", floats}, param{"y", floats})
	f.load("SI", "x_base")
	f.load("DX", "y_base")
	f.load("CX", "x_len")
	for v := 8; v < 12; v++ {
		f.zero(v)
	}

	pair, rest := f.label("pair"), f.label("rest")
	f.op("SUBQ $%d, CX", 2*f.lanes)
	f.op("JLT %s", rest)
	f.at(pair)

	for i := range 4 {
		f.op("VCVTPS2PD %s, {%d}", offset(2*f.lanes*i, "SI"), i)
		f.op("VCVTPS2PD %s, {%d}", offset(2*f.lanes*i, "DX"), 4+i)
		f.op("VFMADD231PD {%d}, {%d}, {%d}", i, 4+i, 8+i)
	}

	f.op("ADDQ $%d, SI", 8*f.lanes)
	f.op("ADDQ $%d, DX", 8*f.lanes)
	f.op("SUBQ $%d, CX", 2*f.lanes)
	f.op("JGE %s", pair)
	f.at(rest)
	f.op("ADDQ $%d, CX", 2*f.lanes)
	f.loop(map[string]int{"SI": 4 * f.lanes, "DX": 4 * f.lanes}, func(tail bool) {
		f.get("(DX)", 0, tail)
		f.widenHalves()
		f.op("VMOVAPD {1}, {5}")
		f.op("VMOVAPD {2}, {6}")
		f.get("(SI)", 0, tail)
		f.widenHalves()
		f.op("VFMADD231PD {1}, {5}, {8}")
		f.op("VFMADD231PD {2}, {6}, {9}")
	})

	f.op("VADDPD {10}, {8}, {8}")
	f.op("VADDPD {11}, {9}, {9}")
	f.total()
	f.ret()
}

// sumIntoLoops write the sums of columns, of one row and of four: the sums, twice as wide as a row, are read
// and written once.
func sumIntoLoops(f *file) {
	f.fn("sumInto", "for i { acc[i] += x[i] }", "", param{"acc", doubles}, param{"x", floats})
	f.pointers("acc", "x")
	f.sumColumns("SI")
	f.fn("sumFourInto", "for i, r < 4 { acc[i] += x[r·stride + i] }", "", param{"acc", doubles}, param{"x", floats},
		param{"stride", "int"})
	f.pointers("acc", "x")
	f.load("R12", "stride")
	f.op("LEAQ (SI)(R12*4), DX")
	f.op("LEAQ (DX)(R12*4), BX")
	f.op("LEAQ (BX)(R12*4), R8")
	f.sumColumns("SI", "DX", "BX", "R8")
}

// sumColumns adds CX columns of some rows to the sums at DI.
func (f *file) sumColumns(rows ...string) {
	loop := f.label("loop")
	tail := f.label("tail")
	one := f.label("one")
	done := f.label("done")
	second := offset(4*f.lanes, "DI")

	f.op("SUBQ $%d, CX", f.lanes)
	f.op("JLT %s", tail)
	f.at(loop)
	f.op("VMOVUPD (DI), {3}")
	f.op("VMOVUPD %s, {4}", second)

	for _, r := range rows {
		f.op("VCVTPS2PD (%s), {1}", r)
		f.op("VCVTPS2PD %s, {2}", offset(2*f.lanes, r))
		f.op("VADDPD {1}, {3}, {3}")
		f.op("VADDPD {2}, {4}, {4}")
		f.op("ADDQ $%d, %s", 4*f.lanes, r)
	}

	f.op("VMOVUPD {3}, (DI)")
	f.op("VMOVUPD {4}, %s", second)
	f.op("ADDQ $%d, DI", 8*f.lanes)
	f.op("SUBQ $%d, CX", f.lanes)
	f.op("JGE %s", loop)
	f.at(tail)
	f.op("ADDQ $%d, CX", f.lanes)
	f.op("JZ %s", done)
	f.at(one)
	f.op("VMOVSD (DI), X1")

	for _, r := range rows {
		f.op("VMOVSS (%s), X0", r)
		f.op("VCVTSS2SD X0, X0, X0")
		f.op("VADDSD X0, X1, X1")
		f.op("ADDQ $4, %s", r)
	}

	f.op("VMOVSD X1, (DI)")
	f.op("ADDQ $8, DI")
	f.op("DECQ CX")
	f.op("JNZ %s", one)
	f.at(done)
	f.ret()
}

var doubles = "[]float64"

// momentsLoop keeps Σ g in registers 8 and 9, Σ g·n in 10 and 11; parameters are in 12 to 14 and 7.
func momentsLoop(f *file) {
	f.fn("moments", "out = 0, 0; for i { g, n := dy[i]·(w[i] + one), (x[i] - m0 - m1)·r; out[0] += g; out[1] += g·n }",
		"",
		param{"out", doubles}, param{"x", floats}, param{"dy", floats}, param{"w", floats},
		param{"m0", "float32"}, param{"m1", "float32"}, param{"r", "float32"}, param{"one", "float32"})

	f.load("SI", "x_base")
	f.load("DX", "dy_base")
	f.load("BX", "w_base")
	f.load("CX", "x_len")
	f.spread("m0", 12)
	f.spread("m1", 13)
	f.spread("r", 14)
	f.spread("one", 7)
	for v := 8; v < 12; v++ {
		f.zero(v)
	}

	f.loop(map[string]int{"SI": 4 * f.lanes, "DX": 4 * f.lanes, "BX": 4 * f.lanes}, func(tail bool) {
		f.get("(SI)", 0, tail)
		f.op("VSUBPS {12}, {0}, {0}")
		f.op("VSUBPS {13}, {0}, {0}")
		f.op("VMULPS {14}, {0}, {0}")
		f.widenHalves()
		f.op("VMOVAPD {1}, {5}")
		f.op("VMOVAPD {2}, {6}")
		f.get("(DX)", 0, tail)
		f.get("(BX)", 3, tail)
		f.op("VADDPS {7}, {3}, {3}")
		f.op("VMULPS {3}, {0}, {0}")
		f.widenHalves()
		f.op("VADDPD {1}, {8}, {8}")
		f.op("VADDPD {2}, {9}, {9}")
		f.op("VFMADD231PD {1}, {5}, {10}")
		f.op("VFMADD231PD {2}, {6}, {11}")
	})

	f.load("DI", "out_base")
	f.totalTo(8, 9, "(DI)")
	f.totalTo(10, 11, "8(DI)")
	f.ret()
}

func normGradLoop(f *file) {
	f.fn("normSlope", "for i { g, n := dy[i]·(w[i] + one), (x[i] - m0 - m1)·r; dx[i] += r·(g - a - n·b); dw[i] "+
		"+= dy[i]·n }", "",
		param{"dx", floats}, param{"dw", floats}, param{"dy", floats}, param{"x", floats}, param{"w", floats},
		param{"m0", "float32"}, param{"m1", "float32"}, param{"r", "float32"}, param{"one", "float32"},
		param{"a", "float32"}, param{"b", "float32"})

	f.pointers("dx", "dw", "dy", "x", "w")
	for i, p := range []string{"m0", "m1", "r", "one", "a", "b"} {
		f.spread(p, 5+i)
	}

	f.loop(f.streams(5), func(tail bool) {
		f.get("(BX)", 0, tail)
		f.op("VSUBPS {5}, {0}, {0}")
		f.op("VSUBPS {6}, {0}, {0}")
		f.op("VMULPS {7}, {0}, {0}")
		f.get("(DX)", 1, tail)
		f.get("(R8)", 2, tail)
		f.op("VADDPS {8}, {2}, {2}")
		f.op("VFMSUB213PS {9}, {1}, {2}") // g - a
		f.op("VFNMADD231PS {10}, {0}, {2}")
		f.get("(DI)", 3, tail)
		f.op("VFMADD231PS {7}, {2}, {3}")
		f.put(3, "(DI)", tail)
		f.get("(SI)", 4, tail)
		f.op("VFMADD231PS {1}, {0}, {4}")
		f.put(4, "(SI)", tail)
	})

	f.ret()
}

// scoresLoop goes row by row: registers 11 and 12 hold its LSE and delta, 14 r, 10 -1 and 9 one.
func scoresLoop(f *file) {
	f.fn("laneScores", "for i, lane { p, t := exp(s[i, lane] - lse[i]), max(s[i, lane]·r, -1); s[i, lane], ds[i, "+
		"lane] = p, p·(ds[i, lane] - delta[i])·(1 - t²) }", "",
		param{"s", floats}, param{"ds", floats}, param{"lse", floats}, param{"delta", floats}, param{"r", "float32"})
	f.load("DI", "s_base")
	f.load("SI", "ds_base")
	f.load("DX", "lse_base")
	f.load("BX", "delta_base")
	f.load("CX", "lse_len")
	f.spread("r", 14)
	f.set("minusone", 10)
	f.set("one", 9)
	f.set("expmin", lowLimit)

	loop := f.label("loop")
	f.at(loop)
	f.op("VBROADCASTSS (DX), {11}")
	f.op("VBROADCASTSS (BX), {12}")

	for i := range f.vectors() {
		at := 4 * f.lanes * i
		f.op("VMOVUPS %s, {0}", offset(at, "DI"))
		f.op("VMULPS {14}, {0}, {5}")
		f.op("VMAXPS {10}, {5}, {5}") // -1 for the NaN of -Inf·0
		f.op("VSUBPS {11}, {0}, {0}")
		f.expNegative(0, lowLimit, 1, 2, 3)
		f.op("VMOVUPS {0}, %s", offset(at, "DI"))
		f.op("VMOVUPS %s, {4}", offset(at, "SI"))
		f.op("VSUBPS {12}, {4}, {4}")
		f.op("VMULPS {0}, {4}, {4}")
		f.op("VMOVAPS {9}, {6}")
		f.op("VFNMADD231PS {5}, {5}, {6}")
		f.op("VMULPS {6}, {4}, {4}")
		f.op("VMOVUPS {4}, %s", offset(at, "SI"))
	}

	f.op("ADDQ $%d, DI", f.rowBytes())
	f.op("ADDQ $%d, SI", f.rowBytes())
	f.op("ADDQ $4, DX")
	f.op("ADDQ $4, BX")
	f.op("DECQ CX")
	f.op("JNZ %s", loop)
	f.ret()
}
