package main

var floats = "[]float32"

// elementwise writes the loops whose results depend on one place of each operand.
func elementwise(f *file) {
	for _, fn := range functions {
		f.fn(fn.name, "for i { dst[i] = "+fn.doc+" }", "", param{"dst", floats}, param{"x", floats})
		f.pointers("dst", "x")
		fn.limits(f)
		f.loop(map[string]int{"DI": 4 * f.lanes, "SI": 4 * f.lanes}, func(tail bool) {
			f.get("(SI)", 0, tail)
			fn.body(f)
			f.put(0, "(DI)", tail)
		})

		f.ret()

		f.fn(fn.name+"Gate", "for i { dst[i] = u[i] · f(x[i]), f(x) = "+fn.doc+" }", "", param{"dst", floats},
			param{"x", floats}, param{"u", floats})
		f.pointers("dst", "x", "u")
		fn.limits(f)
		f.loop(map[string]int{"DI": 4 * f.lanes, "SI": 4 * f.lanes, "DX": 4 * f.lanes}, func(tail bool) {
			f.get("(SI)", 0, tail)
			fn.body(f)
			f.get("(DX)", 1, tail)
			f.op("VMULPS {1}, {0}, {0}")
			f.put(0, "(DI)", tail)
		})

		f.ret()
	}

	softcapLoop(f)
	addLoop(f)
	normLoops(f)
	widenLoops(f, 0)
	narrowLoops(f)
}

// pointers loads up to five slices' addresses into DI, SI, DX, BX, R8 and the length of the first into CX.
func (f *file) pointers(names ...string) {
	for i, n := range names {
		f.load([]string{"DI", "SI", "DX", "BX", "R8"}[i], n+"_base")
	}
	f.load("CX", names[0]+"_len")
}

// streams are the advances of the first n pointers, one vector of float32 each.
func (f *file) streams(n int) map[string]int {
	m := map[string]int{}
	for _, r := range []string{"DI", "SI", "DX", "BX", "R8"}[:n] {
		m[r] = 4 * f.lanes
	}
	return m
}

func softcapLoop(f *file) {
	f.fn("tanh", "for i { dst[i] = post · tanh(x[i] · pre) }", "",
		param{"dst", floats}, param{"x", floats}, param{"pre", "float32"}, param{"post", "float32"})
	f.pointers("dst", "x")
	f.set("expmin", lowLimit)
	f.spread("pre", 11)
	f.spread("post", 12)
	f.loop(f.streams(2), func(tail bool) {
		f.get("(SI)", 0, tail)
		f.op("VMULPS {11}, {0}, {0}")
		tanh(f)
		f.op("VMULPS {12}, {0}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()
}

func addLoop(f *file) {
	f.fn("add", "for i { dst[i] = a[i] + scale·b[i] }", "",
		param{"dst", floats}, param{"a", floats}, param{"b", floats}, param{"scale", "float32"})
	f.pointers("dst", "a", "b")
	f.spread("scale", 2)
	f.loop(f.streams(3), func(tail bool) {
		f.get("(SI)", 0, tail)
		f.get("(DX)", 1, tail)
		f.op("VFMADD231PS {1}, {2}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()

	f.fn("scale", "for i { dst[i] = x[i] · scale }", "", param{"dst", floats}, param{"x", floats},
		param{"scale", "float32"})
	f.pointers("dst", "x")
	f.spread("scale", 2)
	f.loop(f.streams(2), func(tail bool) {
		f.get("(SI)", 0, tail)
		f.op("VMULPS {2}, {0}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()
}

func normLoops(f *file) {
	f.fn("norm", "for i { dst[i] = x[i] · r · (w[i] + one) }", "",
		param{"dst", floats}, param{"x", floats}, param{"w", floats}, param{"r", "float32"}, param{"one", "float32"})
	f.pointers("dst", "x", "w")
	f.spread("r", 2)
	f.spread("one", 3)
	f.loop(f.streams(3), func(tail bool) {
		f.get("(SI)", 0, tail)
		f.get("(DX)", 1, tail)
		f.op("VADDPS {3}, {1}, {1}")
		f.op("VMULPS {2}, {0}, {0}")
		f.op("VMULPS {1}, {0}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()

	f.fn("affine", "for i { dst[i] = (x[i] - m0 - m1) · r · w[i] + b[i] }", "", param{"dst", floats},
		param{"x", floats},
		param{"w", floats}, param{"b", floats}, param{"m0", "float32"}, param{"m1", "float32"}, param{"r", "float32"})
	f.pointers("dst", "x", "w", "b")
	f.spread("m0", 3)
	f.spread("m1", 4)
	f.spread("r", 5)
	f.loop(f.streams(4), func(tail bool) {
		f.get("(SI)", 0, tail)
		f.get("(DX)", 1, tail)
		f.get("(BX)", 2, tail)
		f.op("VSUBPS {3}, {0}, {0}")
		f.op("VSUBPS {4}, {0}, {0}")
		f.op("VMULPS {5}, {0}, {0}")
		f.op("VFMADD213PS {2}, {1}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()
}

var words = "[]uint16"

// widenLoops convert 16-bit floats to float32. What lies so many bytes ahead, if not 0, is fetched into the
// second cache.
func widenLoops(f *file, ahead int) {
	for _, bf := range []bool{true, false} {
		name := map[bool]string{true: "widenRowBF16", false: "widenRowF16"}[bf]
		f.fn(name, "for i { dst[i] = float32(x[i]) }", "", param{"dst", floats}, param{"x", words})
		f.pointers("dst", "x")
		vector := func(suffix string) {
			if bf {
				f.op("VPMOVZXWD%s {0}", suffix)
				f.op("VPSLLD $16, {0}, {0}")
			} else {
				f.op("VCVTPH2PS%s {0}", suffix)
			}
		}

		f.loop16(map[string]int{"DI": 4 * f.lanes, "SI": 2 * f.lanes}, func(tail bool) {
			if tail {
				vector(".Z (SI), K1,")
			} else {
				vector(" (SI),")
				if ahead > 0 {
					f.op("PREFETCHT1 %d(SI)", ahead)
				}
			}
			f.put(0, "(DI)", tail)
		}, func() {
			f.op("MOVWLZX (SI), AX")
			f.op("VMOVD AX, X0")

			if bf {
				f.op("VPSLLD $16, X0, X0")
			} else {
				f.op("VCVTPH2PS X0, X0")
			}

			f.op("VMOVD X0, (DI)")
			f.op("ADDQ $2, SI")
			f.op("ADDQ $4, DI")
		})

		f.ret()
	}
}

// narrowLoops convert float32 to 16-bit floats, nearest with ties to even.
func narrowLoops(f *file) {
	f.fn("narrowRowF16", "for i { dst[i] = float16(x[i]) }", "", param{"dst", words}, param{"x", floats})
	f.pointers("dst", "x")
	f.loop16(map[string]int{"DI": 2 * f.lanes, "SI": 4 * f.lanes}, func(tail bool) {
		f.get("(SI)", 0, tail)
		if tail {
			f.op("VCVTPS2PH $0, {0}, K1, (DI)")
		} else {
			f.op("VCVTPS2PH $0, {0}, (DI)")
		}
	}, func() {
		f.op("VMOVSS (SI), X0")
		f.op("VCVTPS2PH $0, X0, X0")
		f.storeWord()
	})

	f.ret()

	f.fn("narrowRowBF16", "for i { dst[i] = bfloat16(x[i]) }", "", param{"dst", words}, param{"x", floats})
	f.pointers("dst", "x")
	f.set("bf16round", 5)
	f.set("intone", 6)
	f.set("bf16quiet", 7)
	f.loop16(map[string]int{"DI": 2 * f.lanes, "SI": 4 * f.lanes}, func(tail bool) {
		f.get("(SI)", 0, tail)
		f.roundBF16()

		switch {
		case !f.wide():
			f.op("VEXTRACTI128 $1, Y0, X1")
			f.op("VPACKUSDW X1, X0, X0")
			f.op("VMOVDQU X0, (DI)")
		case tail:
			f.op("VPMOVDW Z0, K1, (DI)")
		default:
			f.op("VPMOVDW Z0, (DI)")
		}
	}, func() {
		f.op("VMOVSS (SI), X0")
		f.roundBF16()
		f.storeWord()
	})

	f.ret()
}

// roundBF16 replaces the floats of register 0 by bfloat16 bits in 32-bit lanes: adds 0x7fff and the lowest bit
// that stays, and cuts; NaN is cut and made quiet.
func (f *file) roundBF16() {
	f.op("VPSRLD $16, {0}, {1}")

	if f.wide() {
		f.op("VPANDD {6}, {1}, {2}")
	} else {
		f.op("VPAND {6}, {1}, {2}")
	}

	f.op("VPADDD {5}, {2}, {2}")
	f.op("VPADDD {0}, {2}, {2}")
	f.op("VPSRLD $16, {2}, {2}")

	if f.wide() {
		f.op("VCMPPS $3, {0}, {0}, K2")
		f.op("VPORD {7}, {1}, K2, {2}")
		f.op("VMOVDQA32 {2}, {0}")
		return
	}

	f.op("VCMPPS $3, {0}, {0}, {3}")
	f.op("VPOR {7}, {1}, {1}")
	f.op("VBLENDVPS {3}, {1}, {2}, {0}")
}

// storeWord stores the lowest 16 bits of register 0 and advances by one element.
func (f *file) storeWord() {
	f.op("VMOVD X0, AX")
	f.op("MOVW AX, (DI)")
	f.op("ADDQ $2, DI")
	f.op("ADDQ $4, SI")
}

// loop16 is loop for operands of 16 bits: AVX2 has no masks for those, so its tail goes one by one.
func (f *file) loop16(pointers map[string]int, body func(tail bool), single func()) {
	if f.wide() {
		f.loop(pointers, body)
		return
	}

	loop := f.label("loop")
	tail := f.label("tail")
	one := f.label("one")
	done := f.label("done")

	f.op("SUBQ $%d, CX", f.lanes)
	f.op("JLT %s", tail)
	f.at(loop)
	body(false)
	f.op("ADDQ $%d, DI", pointers["DI"])
	f.op("ADDQ $%d, SI", pointers["SI"])
	f.op("SUBQ $%d, CX", f.lanes)
	f.op("JGE %s", loop)
	f.at(tail)
	f.op("ADDQ $%d, CX", f.lanes)
	f.op("JZ %s", done)
	f.at(one)
	single()
	f.op("DECQ CX")
	f.op("JNZ %s", one)
	f.at(done)
}
