package main

// elementwise writes the loops of one instruction or so. They take two vectors a step: 32 or 16 elements.
func (g *gen) elementwise() {
	unary := func(name, doc string, setup func(), body func(v int)) {
		g.fn(name, "for i { dst[i] = "+doc+" }", param{"dst", "*float32"}, param{"x", "*float32"}, param{"n", "int"})
		g.load("dst", "DI")
		g.load("x", "SI")
		g.load("n", "CX")
		setup()
		g.loop(2*g.lanes, func() {
			for v := range 2 {
				g.op("VMOVUPS %d(SI), {%d}", 4*g.lanes*v, v)
				body(v)
				g.op("VMOVUPS {%d}, %d(DI)", v, 4*g.lanes*v)
			}
			g.advance(8*g.lanes, "SI", "DI")
		})

		g.ret()
	}

	unary("sqr", "x[i]²", func() {}, func(v int) { g.op("VMULPS {%d}, {%d}, {%d}", v, v, v) })
	unary("neg", "-x[i]", func() { g.constant("sign", 8) }, func(v int) { g.op("VXORPS {8}, {%d}, {%d}", v, v) })
	unary("abs", "|x[i]|", func() { g.constant("magnitude", 8) }, func(v int) { g.op("VANDPS {8}, {%d}, {%d}", v, v) })
	unary("sqrt", "√|x[i]|", func() { g.constant("magnitude", 8) }, func(v int) {
		g.op("VANDPS {8}, {%d}, {%d}", v, v)
		g.op("VSQRTPS {%d}, {%d}", v, v)
	})

	g.affine()
	g.pairs()
	g.widen()
}

func (g *gen) affine() {
	g.fn("affine", "for i { dst[i] = (x[i] - sub) / div }", param{"dst", "*float32"}, param{"x", "*float32"},
		param{"n", "int"}, param{"sub", "float32"}, param{"div", "float32"})
	g.load("dst", "DI")
	g.load("x", "SI")
	g.load("n", "CX")
	g.spread("sub", 8)
	g.spread("div", 9)
	g.loop(2*g.lanes, func() {
		for v := range 2 {
			g.op("VMOVUPS %d(SI), {%d}", 4*g.lanes*v, v)
			g.op("VSUBPS {8}, {%d}, {%d}", v, v)
			g.op("VDIVPS {9}, {%d}, {%d}", v, v)
			g.op("VMOVUPS {%d}, %d(DI)", v, 4*g.lanes*v)
		}
		g.advance(8*g.lanes, "SI", "DI")
	})

	g.ret()
}

func (g *gen) pairs() {
	binary := func(name, doc string, body func(v int)) {
		g.fn(name, "for i { dst[i] = "+doc+" }", param{"dst", "*float32"}, param{"x", "*float32"},
			param{"y", "*float32"}, param{"n", "int"})
		g.load("dst", "DI")
		g.load("x", "SI")
		g.load("y", "DX")
		g.load("n", "CX")

		if name == "pdiv" {
			g.constant("magnitude", 8)
			g.constant("eps", 9)
		}

		g.loop(2*g.lanes, func() {
			for v := range 2 {
				g.op("VMOVUPS %d(SI), {%d}", 4*g.lanes*v, v)
				g.op("VMOVUPS %d(DX), {%d}", 4*g.lanes*v, v+2)
				body(v)
				g.op("VMOVUPS {%d}, %d(DI)", v, 4*g.lanes*v)
			}
			g.advance(8*g.lanes, "SI", "DI", "DX")
		})

		g.ret()
	}

	for _, o := range [][3]string{
		{"add", "x[i] + y[i]", "VADDPS"},
		{"sub", "x[i] - y[i]", "VSUBPS"},
		{"mul", "x[i] * y[i]", "VMULPS"},
	} {
		binary(o[0], o[1], func(v int) { g.op("%s {%d}, {%d}, {%d}", o[2], v+2, v, v) })
	}

	binary("pdiv", "x[i] / (|y[i]| + 1e-8)", func(v int) {
		g.op("VANDPS {8}, {%d}, {%d}", v+2, v+2)
		g.op("VADDPS {9}, {%d}, {%d}", v+2, v+2)
		g.op("VDIVPS {%d}, {%d}, {%d}", v+2, v, v)
	})

	for _, o := range [][3]string{
		{"min", "min(x[i], y[i]), NaN if one is", "VMINPS"},
		{"max", "max(x[i], y[i]), NaN if one is", "VMAXPS"},
	} {
		binary(o[0], o[1], func(v int) {
			g.op("VADDPS {%d}, {%d}, {%d}", v+2, v, v+4)

			if g.wide() {
				g.op("VCMPPS $3, {%d}, {%d}, K1", v+2, v)
				g.op("%s {%d}, {%d}, {%d}", o[2], v+2, v, v)
				g.op("VMOVAPS {%d}, K1, {%d}", v+4, v)
				return
			}

			g.op("VCMPPS $3, {%d}, {%d}, {%d}", v+2, v, v+6)
			g.op("%s {%d}, {%d}, {%d}", o[2], v+2, v, v)
			g.op("VBLENDVPS {%d}, {%d}, {%d}, {%d}", v+6, v+4, v, v)
		})
	}
}

// widen writes the conversions of 16-bit floats.
func (g *gen) widen() {
	for _, half := range []bool{false, true} {
		name := map[bool]string{false: "bf16", true: "f16"}[half]
		g.fn(name, "for i { dst[i] = float32(x[i] & mask) }", param{"dst", "*float32"}, param{"x", "*uint16"},
			param{"n", "int"}, param{"mask", "uint16"})
		g.load("dst", "DI")
		g.load("x", "SI")
		g.load("n", "CX")
		g.op("VPBROADCASTW %s, {8}", g.arg("mask"))
		g.loop(2*g.lanes, func() {
			for v := range 2 {
				g.op("VMOVDQU%s %d(SI), {h%d}", map[bool]string{true: "16", false: ""}[g.wide()], 2*g.lanes*v, v)
				g.op("%s {h8}, {h%d}, {h%d}", map[bool]string{true: "VPANDD", false: "VPAND"}[g.wide()], v, v)

				if half {
					g.op("VCVTPH2PS {h%d}, {%d}", v, v)
				} else {
					g.op("VPMOVZXWD {h%d}, {%d}", v, v)
					g.op("VPSLLD $16, {%d}, {%d}", v, v)
				}

				g.op("VMOVUPS {%d}, %d(DI)", v, 4*g.lanes*v)
			}

			g.advance(4*g.lanes, "SI")
			g.advance(8*g.lanes, "DI")
		})

		g.ret()
	}
}

// arith writes an instruction whose first operand is a float64 constant; AVX2 keeps constants in the stack of registers
// from 16 on only in AVX-512, so it takes them from memory through a scratch register.
func (g *gen) arith(mnemonic, name string, rest string, args ...any) {
	if g.wide() {
		g.op("%s.BCST %s, "+rest, append([]any{mnemonic, place(name)}, args...)...)
		return
	}
	g.constantD(name, 15)
	g.op("%s {15}, "+rest, append([]any{mnemonic}, args...)...)
}

// reduce splits e^y = 2^n·(1 + q): y in register y; q returns there, 2^n in t. r is overwritten.
func (g *gen) reduce(y, t, r int) {
	g.constantD("rounder", t)
	g.arith("VFMADD231PD", "log2e", "{%d}, {%d}", y, t) // t = y·log2e + rounder
	g.arith("VSUBPD", "rounder", "{%d}, {%d}", t, r)    // n
	g.arith("VFMADD231PD", "minusln2", "{%d}, {%d}", r, y)
	g.op("VPSLLQ $52, {%d}, {%d}", t, t)
	g.arith("VPADDQ", "bias", "{%d}, {%d}", t, t)
	g.constantD("e6", r)
	for _, c := range []string{"e5", "e4", "e3", "e2", "e1", "e0"} {
		g.arith("VFMADD213PD", c, "{%d}, {%d}", y, r) // r = r·y + c
	}

	g.op("VMULPD {%d}, {%d}, {%d}", r, y, y)
}

// doubles splits the float32 of {0} into float64 {1} and {2}.
func (g *gen) doubles() {
	g.op("VCVTPS2PD {h0}, {1}")
	g.upper(0, 2)
	g.op("VCVTPS2PD {h2}, {2}")
}

func (g *gen) upper(from, to int) {
	if g.wide() {
		g.op("VEXTRACTF64X4 $1, {%d}, {h%d}", from, to)
		return
	}
	g.op("VEXTRACTF128 $1, {%d}, {h%d}", from, to)
}

// singles rounds float64 {1} and {2} to the float32 of {0}.
func (g *gen) singles() {
	suffix := map[bool]string{true: "", false: "Y"}[g.wide()]
	g.op("VCVTPD2PS%s {1}, {h1}", suffix)
	g.op("VCVTPD2PS%s {2}, {h2}", suffix)
	if g.wide() {
		g.op("VINSERTF64X4 $1, {h2}, {1}, {0}")
		return
	}
	g.op("VINSERTF128 $1, {h2}, {1}, {0}")
}

// functions writes exp, log and tanh, one vector a step, in two halves of float64.
func (g *gen) functions() {
	each := func(name, doc string, before func(), half func(v, t, r int), after func()) {
		g.fn(name, "for i { dst[i] = "+doc+" }", param{"dst", "*float32"}, param{"x", "*float32"}, param{"n", "int"})
		g.load("dst", "DI")
		g.load("x", "SI")
		g.load("n", "CX")
		g.loop(g.lanes, func() {
			g.op("VMOVUPS (SI), {0}")
			before()
			g.doubles()
			half(1, 3, 5)
			half(2, 4, 6)
			g.singles()
			after()
			g.op("VMOVUPS {0}, (DI)")
			g.advance(4*g.lanes, "SI", "DI")
		})

		g.ret()
	}

	nothing := func() {}
	each("exp", "e^min(x[i], 100)", nothing, func(v, t, r int) {
		g.constantD("hundred", t)
		g.op("VMINPD {%d}, {%d}, {%d}", v, t, v) // the second source if one is NaN
		g.constantD("explimit", t)
		g.op("VMAXPD {%d}, {%d}, {%d}", v, t, v)
		g.reduce(v, t, r)
		g.op("VFMADD213PD {%d}, {%d}, {%d}", t, t, v) // q·2^n + 2^n
	}, nothing)

	each("tanh", "tanh(x[i])", func() { g.op("VMOVAPS {0}, {7}") }, g.tanhHalf, func() {
		g.constant("magnitude", 8)
		g.op("VANDPS {8}, {0}, {0}")
		g.constant("sign", 8)
		g.op("VANDPS {8}, {7}, {7}")
		g.op("VORPS {7}, {0}, {0}")
	})

	each("log", "ln(|x[i]| + 0.001)", func() {
		g.constant("magnitude", 8)
		g.op("VANDPS {8}, {0}, {0}")
		g.constant("milli", 8)
		g.op("VADDPS {8}, {0}, {0}")
		g.op("VMOVAPS {0}, {7}")
	}, g.logHalf, func() {
		g.constant("inf", 8)
		if g.wide() {
			g.op("VCMPPS $5, {8}, {7}, K1") // not below infinity
			g.op("VMOVAPS {7}, K1, {0}")
			return
		}
		g.op("VCMPPS $5, {8}, {7}, {8}")
		g.op("VBLENDVPS {8}, {7}, {0}, {0}")
	})
}

// tanhHalf is |E| / (2 + E) with E = exp(-2|x|) - 1; the caller puts the sign.
func (g *gen) tanhHalf(v, t, r int) {
	g.and("magnituded", v)
	g.constantD("twenty", t)
	g.op("VMINPD {%d}, {%d}, {%d}", v, t, v)
	g.arith("VMULPD", "minustwo", "{%d}, {%d}", v, v)
	g.reduce(v, t, r)
	g.constantD("one", r)
	g.op("VSUBPD {%d}, {%d}, {%d}", r, t, r)      // 2^n - 1
	g.op("VFMADD213PD {%d}, {%d}, {%d}", r, t, v) // E
	g.arith("VADDPD", "two", "{%d}, {%d}", v, r)
	g.op("VDIVPD {%d}, {%d}, {%d}", r, v, v)
}

func (g *gen) and(name string, v int) {
	g.constantD(name, 15)
	g.op("VANDPD {15}, {%d}, {%d}", v, v)
}

// logHalf is k·ln 2 + ln(1 + f) with u = 2^k·(1 + f).
func (g *gen) logHalf(v, t, r int) {
	g.arith("VPADDQ", "rootbias", "{%d}, {%d}", v, t)
	g.op("VPSRLQ $52, {%d}, {%d}", t, t) // k + 1023
	g.op("VPSLLQ $52, {%d}, {%d}", t, r)
	g.op("VPSUBQ {%d}, {%d}, {%d}", r, v, v)
	g.arith("VPADDQ", "bias", "{%d}, {%d}", v, v)
	g.arith("VSUBPD", "one", "{%d}, {%d}", v, v) // f
	g.arith("VPADDQ", "big", "{%d}, {%d}", t, t)
	g.arith("VSUBPD", "bigbias", "{%d}, {%d}", t, t) // k
	g.constantD("l10", r)
	for _, c := range []string{"l9", "l8", "l7", "l6", "l5", "l4", "l3", "l2", "l1", "l0"} {
		g.arith("VFMADD213PD", c, "{%d}, {%d}", v, r)
	}

	g.op("VMULPD {%d}, {%d}, {9}", v, v)
	g.op("VFMADD213PD {%d}, {9}, {%d}", v, r) // p·f² + f
	g.arith("VFMADD231PD", "ln2", "{%d}, {%d}", t, r)
	g.op("VMOVAPD {%d}, {%d}", r, v)
}

// reductions take 32 elements a step into 32 float64 lanes.
func (g *gen) reductions() {
	quarters := 32 / (g.lanes / 2) // float64 registers of 32 lanes
	sum := func(name, doc string, setup func(), add func(x, acc int)) {
		g.fn(name, "for i { lane[i%32] "+doc+" }", param{"lane", "*[32]float64"}, param{"x", "*float32"},
			param{"n", "int"})
		g.load("lane", "DI")
		g.load("x", "SI")
		g.load("n", "CX")
		setup()
		for q := range quarters {
			g.op("VXORPD {%d}, {%d}, {%d}", q, q, q)
		}

		g.loop(32, func() {
			for q := range quarters {
				g.op("VCVTPS2PD %d(SI), {%d}", 2*g.lanes*q, 8+q%2)
				add(8+q%2, q)
			}
			g.advance(128, "SI")
		})

		for q := range quarters {
			g.op("VMOVUPD {%d}, %d(DI)", q, 4*g.lanes*q)
		}

		g.ret()
	}

	nothing := func() {}
	sum("sumAbs", "+= |x[i]|", func() { g.constantD("magnituded", 15) }, func(x, acc int) {
		g.op("VANDPD {15}, {%d}, {%d}", x, x)
		g.op("VADDPD {%d}, {%d}, {%d}", x, acc, acc)
	})

	sum("sumSq", "+= x[i]²", nothing, func(x, acc int) { g.op("VFMADD231PD {%d}, {%d}, {%d}", x, x, acc) })
	g.moments()
	g.columns()
	g.extremes()
	g.finite()
}

// moments sums differences and their squares. AVX2 has registers for half of the lanes at a time.
func (g *gen) moments() {
	g.fn("moments", "for i { d := x[i] - c; sum[i%32] += d; sq[i%32] += d² }", param{"sum", "*[32]float64"},
		param{"sq", "*[32]float64"}, param{"x", "*float32"}, param{"n", "int"}, param{"c", "float64"})
	g.op("VBROADCASTSD %s, {15}", g.arg("c"))
	g.load("sum", "DI")
	g.load("sq", "DX")

	lanes := g.lanes / 2
	for sweep := range 32 / (4 * lanes) {
		at := sweep * 4 * lanes
		g.load("x", "SI")
		g.load("n", "CX")
		for q := range 8 {
			g.op("VXORPD {%d}, {%d}, {%d}", q, q, q)
		}

		g.loop(32, func() {
			for q := range 4 {
				x := 8 + q%4
				g.op("VCVTPS2PD %d(SI), {%d}", 4*(at+lanes*q), x)
				g.op("VSUBPD {15}, {%d}, {%d}", x, x)
				g.op("VADDPD {%d}, {%d}, {%d}", x, q, q)
				g.op("VFMADD231PD {%d}, {%d}, {%d}", x, x, 4+q)
			}
			g.advance(128, "SI")
		})

		for q := range 4 {
			g.op("VMOVUPD {%d}, %d(DI)", q, 8*(at+lanes*q))
			g.op("VMOVUPD {%d}, %d(DX)", 4+q, 8*(at+lanes*q))
		}
	}

	g.ret()
}

// columns writes sums that every column has for itself.
func (g *gen) columns() {
	for _, square := range []bool{false, true} {
		name, doc := "addAbs", "|x[i]|"
		if square {
			name, doc = "addSq", "x[i]²"
		}

		g.fn(name, "for i { acc[i] += "+doc+" }", param{"acc", "*float64"}, param{"x", "*float32"}, param{"n", "int"})
		g.load("acc", "DI")
		g.load("x", "SI")
		g.load("n", "CX")
		g.constantD("magnituded", 15)
		g.loop(g.lanes, func() {
			for q := range 2 {
				g.op("VCVTPS2PD %d(SI), {%d}", 2*g.lanes*q, q)
				g.op("VMOVUPD %d(DI), {%d}", 4*g.lanes*q, 2+q)

				if square {
					g.op("VFMADD231PD {%d}, {%d}, {%d}", q, q, 2+q)
				} else {
					g.op("VANDPD {15}, {%d}, {%d}", q, q)
					g.op("VADDPD {%d}, {%d}, {%d}", q, 2+q, 2+q)
				}

				g.op("VMOVUPD {%d}, %d(DI)", 2+q, 4*g.lanes*q)
			}

			g.advance(4*g.lanes, "SI")
			g.advance(8*g.lanes, "DI")
		})

		g.ret()
	}
}

// extremes writes the lowest and the highest of 16 lanes each, and a float that is not 0 where x had NaN.
func (g *gen) extremes() {
	regs := 16 / g.lanes
	g.fn("extremes", "for i { lo[i%16] = min(lo[i%16], x[i]); hi[i%16] = max(hi[i%16], x[i]); nan[i%16] |= "+
		"x[i] != x[i] }",
		param{"lo", "*[16]float32"}, param{"hi", "*[16]float32"}, param{"nan", "*[16]uint32"}, param{"x", "*float32"},
		param{"n", "int"})

	g.load("lo", "DI")
	g.load("hi", "DX")
	g.load("nan", "BX")
	g.load("x", "SI")
	g.load("n", "CX")

	for r := range regs {
		g.op("VMOVUPS %d(DI), {%d}", 4*g.lanes*r, r)
		g.op("VMOVUPS %d(DX), {%d}", 4*g.lanes*r, 2+r)
		g.op("VXORPS {%d}, {%d}, {%d}", 4+r, 4+r, 4+r)
	}

	if g.wide() {
		g.op("KXORW K2, K2, K2")
	}

	g.loop(16, func() {
		for r := range regs {
			g.op("VMOVUPS %d(SI), {%d}", 4*g.lanes*r, 8+r)
			g.op("VMINPS {%d}, {%d}, {%d}", 8+r, r, r)
			g.op("VMAXPS {%d}, {%d}, {%d}", 8+r, 2+r, 2+r)

			if g.wide() {
				g.op("VCMPPS $3, {8}, {8}, K1")
				g.op("KORW K1, K2, K2")
			} else {
				g.op("VCMPPS $3, {%d}, {%d}, {%d}", 8+r, 8+r, 8+r)
				g.op("VORPS {%d}, {%d}, {%d}", 8+r, 4+r, 4+r)
			}
		}

		g.advance(64, "SI")
	})

	if g.wide() {
		g.op("VPTERNLOGD $255, {4}, {4}, K2, {4}")
	}

	for r := range regs {
		g.op("VMOVUPS {%d}, %d(DI)", r, 4*g.lanes*r)
		g.op("VMOVUPS {%d}, %d(DX)", 2+r, 4*g.lanes*r)
		g.op("VMOVUPS {%d}, %d(BX)", 4+r, 4*g.lanes*r)
	}

	g.ret()
}

// finite ors x - x of all elements, whose bits are 0 (or the sign's) only where x is finite.
func (g *gen) finite() {
	g.fn("finite", "for i { if x[i] - x[i] != 0 { bad[i%16] = 1 } }", param{"bad", "*[16]uint32"},
		param{"x", "*float32"}, param{"n", "int"})
	g.load("bad", "DI")
	g.load("x", "SI")
	g.load("n", "CX")
	g.op("VXORPS {0}, {0}, {0}")
	g.op("VXORPS {3}, {3}, {3}")
	g.loop(2*g.lanes, func() {
		for v := range 2 {
			g.op("VMOVUPS %d(SI), {%d}", 4*g.lanes*v, 1+v)
			g.op("VSUBPS {%d}, {%d}, {%d}", 1+v, 1+v, 1+v)
			g.op("VORPS {%d}, {%d}, {%d}", 1+v, map[int]int{0: 0, 1: 3}[v], map[int]int{0: 0, 1: 3}[v])
		}
		g.advance(8*g.lanes, "SI")
	})

	g.op("VORPS {3}, {0}, {0}")
	g.op("VMOVUPS {0}, (DI)")
	g.ret()
}
