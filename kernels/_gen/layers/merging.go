package main

import "slices"

var keys = "[]uint32"

// merging writes the loops of checkpoint merging, which run over blocks that stay in the cache.
func merging(f *file) {
	f.counting()
	addLoop(f)
	widenLoops(f, 8192) // the next block of the same input, which others come before
	narrowLoops(f)
	productLoops(f)
	peakLoop(f)
	withinLoop(f)
	tallyLoop(f)
	electLoop(f)
	ratioLoops(f)
	dropoutLoop(f)
	lanesLoop(f)
	mixing(f)
	f.fn("apart", "for i { acc[i] += (x[i] - y[i])² }", "", param{"acc", floats}, param{"x", floats},
		param{"y", floats})
	f.pointers("acc", "x", "y")
	f.loop(f.streams(3), func(tail bool) {
		f.get("(DI)", 0, tail)
		f.get("(SI)", 1, tail)
		f.get("(DX)", 2, tail)
		f.op("VSUBPS {2}, {1}, {1}")
		f.op("VFMADD231PS {1}, {1}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()
}

// productLoops sum in float64: products of two vectors, and magnitudes.
func productLoops(f *file) {
	f.fn("dot", "for i { ret += x[i] · y[i] }", "float64", param{"x", floats}, param{"y", floats})
	f.load("SI", "x_base")
	f.load("DX", "y_base")
	f.load("CX", "x_len")
	f.zeroSums()
	f.loopPairs(map[string]int{"SI": 4 * f.lanes, "DX": 4 * f.lanes}, func(sum int, tail bool) {
		f.get("(DX)", 0, tail)
		f.widenHalves()
		f.op("VMOVAPD {1}, {4}")
		f.op("VMOVAPD {2}, {5}")
		f.get("(SI)", 0, tail)
		f.widenHalves()
		f.op("VFMADD231PD {1}, {4}, {%d}", sum)
		f.op("VFMADD231PD {2}, {5}, {%d}", sum+1)
	})

	f.ret()

	f.fn("sumAbs", "for i { ret += |x[i]| }", "float64", param{"x", floats})
	f.load("SI", "x_base")
	f.load("CX", "x_len")
	f.set("magnitude", 13)
	f.zeroSums()
	f.loopPairs(map[string]int{"SI": 4 * f.lanes}, func(sum int, tail bool) {
		f.get("(SI)", 0, tail)
		f.op("VANDPS {13}, {0}, {0}")
		f.widenHalves()
		f.op("VADDPD {1}, {%d}, {%d}", sum, sum)
		f.op("VADDPD {2}, {%d}, {%d}", sum+1, sum+1)
	})

	f.ret()
}

// zeroSums clears the four float64 sums.
func (f *file) zeroSums() {
	for v := 8; v < 12; v++ {
		f.zero(v)
	}
}

// loopPairs runs one for two vectors at a time, with the sums in 8, 9 and in 10, 11, and returns their total.
func (f *file) loopPairs(pointers map[string]int, one func(sum int, tail bool)) {
	pair, rest := f.label("pair"), f.label("rest")
	f.op("SUBQ $%d, CX", 2*f.lanes)
	f.op("JLT %s", rest)
	f.at(pair)

	for i := range 2 {
		one(8+2*i, false)
		for _, r := range []string{"SI", "DX"} {
			if n := pointers[r]; n > 0 {
				f.op("ADDQ $%d, %s", n, r)
			}
		}
	}

	f.op("SUBQ $%d, CX", 2*f.lanes)
	f.op("JGE %s", pair)
	f.at(rest)
	f.op("ADDQ $%d, CX", 2*f.lanes)
	f.loop(pointers, func(tail bool) { one(8, tail) })
	f.op("VADDPD {10}, {8}, {8}")
	f.op("VADDPD {11}, {9}, {9}")
	f.total()
}

// peakLoop finds the highest magnitude by its bits, so that NaN counts as higher than infinity.
func peakLoop(f *file) {
	f.fn("peak", "for i { ret = max(ret, |x[i]|) }, NaN above infinity", "float32", param{"x", floats})
	f.load("SI", "x_base")
	f.load("CX", "x_len")
	f.set("magnitude", 13)
	f.zero(8)
	f.zero(9)
	f.zero(10)

	four, rest := f.label("four"), f.label("rest")
	f.op("SUBQ $%d, CX", 4*f.lanes)
	f.op("JLT %s", rest)
	f.at(four)

	for i := range 4 {
		f.get(offset(4*f.lanes*i, "SI"), i, false)
		f.op("VANDPS {13}, {%d}, {%d}", i, i)
		f.op("VPMAXSD {%d}, {%d}, {%d}", i, 8+i%2, 8+i%2)
	}

	f.op("ADDQ $%d, SI", 16*f.lanes)
	f.op("SUBQ $%d, CX", 4*f.lanes)
	f.op("JGE %s", four)
	f.at(rest)
	f.op("ADDQ $%d, CX", 4*f.lanes)
	f.loop(map[string]int{"SI": 4 * f.lanes}, func(tail bool) {
		f.get("(SI)", 0, tail)
		f.op("VANDPS {13}, {0}, {0}")
		f.op("VPMAXSD {0}, {8}, {8}")
	})

	f.op("VPMAXSD {9}, {8}, {8}")

	if f.wide() {
		f.op("VEXTRACTF32X8 $1, Z8, Y9")
		f.op("VPMAXSD Y9, Y8, Y8")
	}

	f.op("VEXTRACTF128 $1, Y8, X9")
	f.op("VPMAXSD X9, X8, X8")
	f.op("VPERMILPS $0x4e, X8, X9")
	f.op("VPMAXSD X9, X8, X8")
	f.op("VPERMILPS $0xb1, X8, X9")
	f.op("VPMAXSD X9, X8, X8")
	f.op("VMOVSS X8, %s", f.arg("ret"))
	f.ret()
}

// withinLoop keeps what has a key of a magnitude in a range.
func withinLoop(f *file) {
	f.fn("within", "for i { dst[i] = x[i] if lo ≤ bits(|key[i]|) ≤ hi, else 0 }", "",
		param{"dst", floats}, param{"x", floats}, param{"key", floats}, param{"lo", "uint32"}, param{"hi", "uint32"})
	f.pointers("dst", "x", "key")
	f.set("magnitude", 13)
	f.spread("lo", 11)
	f.spread("hi", 12)
	f.loop(f.streams(3), func(tail bool) {
		f.get("(DX)", 0, tail)
		f.op("VANDPS {13}, {0}, {0}")
		f.get("(SI)", 1, tail)

		if f.wide() {
			f.op("VPCMPD $5, {11}, {0}, K2")
			f.op("VPCMPD $2, {12}, {0}, K2, K3")
			f.op("VMOVAPS.Z {1}, K3, {1}")
		} else {
			f.op("VPCMPGTD {0}, {11}, {2}")
			f.op("VPCMPGTD {12}, {0}, {3}")
			f.op("VPOR {3}, {2}, {2}")
			f.op("VPANDN {1}, {2}, {1}")
		}

		f.put(1, "(DI)", tail)
	})

	f.ret()
}

// tallyLoop counts magnitudes against two bounds and collects those strictly between them. The bounds and those
// less one are in 10 to 13, the counts in R10 to R13, the free place of out in DI.
func tallyLoop(f *file) {
	f.fn("tally", "m = bits(|x[i]|): count[0] += m > hi, count[1] += m ≥ hi, count[2] += m > lo, count[3] += m ≥ "+
		"lo, and appends m with lo < m < hi to out, which has room for a vector beyond len(x); ret = how many", "int",
		param{"x", floats}, param{"lo", "uint32"}, param{"hi", "uint32"}, param{"count", "[]int64"}, param{"out", keys})
	f.load("SI", "x_base")
	f.load("CX", "x_len")
	f.load("DI", "out_base")
	f.tallyBounds()
	f.loop(map[string]int{"SI": 4 * f.lanes}, func(tail bool) {
		f.get("(SI)", 0, tail)
		f.op("VANDPS {14}, {0}, {0}")
		if f.wide() {
			f.tallyWide(tail)
		} else {
			f.tallyNarrow(tail, "SI")
		}
	})

	f.tallyEnd()
	f.ret()
}

// tallyBounds prepares the bounds and the counts.
func (f *file) tallyBounds() {
	f.set("magnitude", 15-1)
	f.set("intone", 9)
	f.spread("hi", 10)
	f.op("VPSUBD {9}, {10}, {11}")
	f.spread("lo", 12)
	f.op("VPSUBD {9}, {12}, {13}")
	for i := range 4 {
		f.op("XORL R%d, R%d", 10+i, 10+i)
	}
}

// tallyEnd adds to the counts, whose address goes to BX, and returns how many magnitudes were written.
func (f *file) tallyEnd() {
	f.load("BX", "count_base")
	for i := range 4 {
		f.op("ADDQ R%d, %d(BX)", 10+i, 8*i)
	}
	f.op("MOVQ %s, AX", f.arg("out_base"))
	f.op("SUBQ AX, DI")
	f.op("SHRQ $2, DI")
	f.op("MOVQ DI, %s", f.arg("ret"))
}

func (f *file) tallyWide(tail bool) {
	for i := range 4 {
		if tail {
			f.op("VPCMPGTD {%d}, {0}, K1, K%d", 10+i, 2+i)
		} else {
			f.op("VPCMPGTD {%d}, {0}, K%d", 10+i, 2+i)
		}

		f.op("KMOVW K%d, R8", 2+i)
		f.op("POPCNTL R8, R8")
		f.op("ADDQ R8, R%d", 10+i)
	}

	f.op("KANDNW K4, K3, K6") // without a branch, which would be mispredicted often
	f.op("KMOVW K6, R8")
	f.op("VPCOMPRESSD.Z {0}, K6, {1}")
	f.op("VMOVDQU32 {1}, (DI)")
	f.op("POPCNTL R8, R8")
	f.op("LEAQ (DI)(R8*4), DI")
}

// tallyNarrow takes the values from memory again, at the address in a register.
func (f *file) tallyNarrow(tail bool, from string) {
	if tail { // lanes past the end become -1, which is above none of the bounds
		f.op("VPCMPEQD {1}, {1}, {1}")
		f.op("VPXOR {%d}, {1}, {1}", mask)
		f.op("VPOR {1}, {0}, {0}")
	}

	for i := range 4 {
		f.op("VPCMPGTD {%d}, {0}, {%d}", 10+i, 1+i)
		f.op("VMOVMSKPS {%d}, R8", 1+i)
		f.op("POPCNTL R8, R8")
		f.op("ADDQ R8, R%d", 10+i)
	}

	none, next := f.label("none"), f.label("next")
	f.op("VPANDN {3}, {2}, {1}")
	f.op("VMOVMSKPS {1}, R8")
	f.op("TESTL R8, R8")
	f.op("JZ %s", none)
	f.at(next)
	f.op("TZCNTL R8, R9")
	f.op("MOVL (%s)(R9*4), R9", from)
	f.op("ANDL $0x7fffffff, R9")
	f.op("MOVL R9, (DI)")
	f.op("ADDQ $4, DI")
	f.op("BLSRL R8, R8")
	f.op("JNZ %s", next)
	f.at(none)
}

// electLoop adds the values whose sign is that of the total, + for a total of 0.
func electLoop(f *file) {
	f.fn("elect", "for i { if v[i] > 0 and total[i] ≥ 0, or v[i] < 0 and not total[i] ≥ 0 { num[i] += wnum · v[i]; "+
		"den[i] += wden } }", "",
		param{"num", floats}, param{"den", floats}, param{"v", floats}, param{"total", floats},
		param{"wnum", "float32"}, param{"wden", "float32"})

	f.pointers("num", "den", "v", "total")
	f.spread("wnum", 11)
	f.spread("wden", 12)
	f.zero(13)
	f.loop(f.streams(4), func(tail bool) {
		f.get("(BX)", 0, tail)
		f.get("(DX)", 1, tail)
		f.get("(DI)", 2, tail)
		f.get("(SI)", 3, tail)

		if f.wide() {
			f.op("VCMPPS $13, {13}, {0}, K2")
			f.op("VCMPPS $14, {13}, {1}, K2, K3")
			f.op("KNOTW K2, K2")
			f.op("VCMPPS $1, {13}, {1}, K2, K4")
			f.op("KORW K3, K4, K3")
			f.op("VFMADD231PS {1}, {11}, K3, {2}")
			f.op("VADDPS {12}, {3}, K3, {3}")
		} else {
			f.op("VCMPPS $13, {13}, {0}, {4}")
			f.op("VCMPPS $14, {13}, {1}, {5}")
			f.op("VCMPPS $1, {13}, {1}, {6}")
			f.op("VBLENDVPS {4}, {5}, {6}, {4}")
			f.op("VANDPS {4}, {1}, {1}")
			f.op("VANDPS {4}, {12}, {5}")
			f.op("VFMADD231PS {1}, {11}, {2}")
			f.op("VADDPS {5}, {3}, {3}")
		}

		f.put(2, "(DI)", tail)
		f.put(3, "(SI)", tail)
	})

	f.ret()
}

// ratioLoops divide, with two ways to treat a divisor near zero.
func ratioLoops(f *file) {
	f.fn("ratio", "for i { dst[i] = num[i] / den[i], or num[i] where den[i] is 0 }", "", param{"dst", floats},
		param{"num", floats}, param{"den", floats})
	f.pointers("dst", "num", "den")
	f.set("one", 11)
	f.zero(13)
	f.loop(f.streams(3), func(tail bool) {
		f.get("(SI)", 0, tail)
		f.get("(DX)", 1, tail)

		if f.wide() {
			f.op("VCMPPS $0, {13}, {1}, K2")
			f.op("VMOVAPS {11}, K2, {1}")
		} else {
			f.op("VCMPPS $0, {13}, {1}, {2}")
			f.op("VBLENDVPS {2}, {11}, {1}, {1}")
		}

		f.op("VDIVPS {1}, {0}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()

	f.fn("ratioFloor", "for i { dst[i] = num[i] / max(den[i], floor) }", "", param{"dst", floats}, param{"num", floats},
		param{"den", floats}, param{"floor", "float32"})
	f.pointers("dst", "num", "den")
	f.spread("floor", 11)
	f.loop(f.streams(3), func(tail bool) {
		f.get("(SI)", 0, tail)
		f.get("(DX)", 1, tail)
		f.op("VMAXPS {11}, {1}, {1}")
		f.op("VDIVPS {1}, {0}, {0}")
		f.put(0, "(DI)", tail)
	})

	f.ret()
}

// dropoutLoop keeps each element with a probability, by a hash of its number.
func dropoutLoop(f *file) {
	f.fn("dropout", "for i { dst[i] = x[i] if hash(first+i, k0, k1) < threshold, else 0 }", "", param{"dst", floats},
		param{"x", floats},
		param{"first", "uint32"}, param{"k0", "uint32"}, param{"k1", "uint32"}, param{"threshold", "uint32"})
	f.pointers("dst", "x")
	f.hashing("golden", 10)
	f.hashing("mix1", 11)
	f.hashing("mix2", 12)
	f.spread("k0", 9)
	f.spread("k1", 8)
	f.spread("threshold", 7)
	f.set("sign", 6)
	f.op("VPXOR%s {6}, {7}, {7}", f.suffixD())
	f.spread("first", 5)
	f.op("VPADDD counting<>(SB), {5}, {5}") // the numbers of the lanes
	f.hashing("width", 4)
	f.loop(f.streams(2), func(tail bool) {
		f.op("VPMULLD {10}, {5}, {0}")
		f.op("VPADDD {9}, {0}, {0}")
		f.fold(16)
		f.op("VPMULLD {11}, {0}, {0}")
		f.fold(15)
		f.op("VPADDD {8}, {0}, {0}")
		f.op("VPMULLD {12}, {0}, {0}")
		f.fold(16)
		f.op("VPXOR%s {6}, {0}, {0}", f.suffixD())
		f.get("(SI)", 1, tail)

		if f.wide() {
			f.op("VPCMPGTD {0}, {7}, K2")
			f.op("VMOVAPS.Z {1}, K2, {1}")
		} else {
			f.op("VPCMPGTD {0}, {7}, {0}")
			f.op("VANDPS {0}, {1}, {1}")
		}

		f.put(1, "(DI)", tail)
		f.op("VPADDD {4}, {5}, {5}")
	})

	f.ret()
}

// lanesLoop carries sixteen sums of words, and the sums of those sums; x is whole groups of sixteen.
func lanesLoop(f *file) {
	f.fn("lanes", "for i { a[i%16] += x[i]; b[i%16] += a[i%16] }", "", param{"x", keys}, param{"a", keys},
		param{"b", keys})
	f.load("SI", "x_base")
	f.load("CX", "x_len")
	f.load("DI", "a_base")
	f.load("BX", "b_base")

	parts := 16 / f.lanes
	for i := range parts {
		f.op("VMOVUPS %s, {%d}", offset(4*f.lanes*i, "DI"), i)
		f.op("VMOVUPS %s, {%d}", offset(4*f.lanes*i, "BX"), 4+i)
	}

	loop, done := f.label("loop"), f.label("done")
	f.op("SHRQ $4, CX")
	f.op("JZ %s", done)
	f.at(loop)
	f.op("PREFETCHT0 4096(SI)")

	for i := range parts {
		f.op("VPADDD %s, {%d}, {%d}", offset(4*f.lanes*i, "SI"), i, i)
		f.op("VPADDD {%d}, {%d}, {%d}", i, 4+i, 4+i)
	}

	f.op("ADDQ $64, SI")
	f.op("DECQ CX")
	f.op("JNZ %s", loop)
	f.at(done)

	for i := range parts {
		f.op("VMOVUPS {%d}, %s", i, offset(4*f.lanes*i, "DI"))
		f.op("VMOVUPS {%d}, %s", 4+i, offset(4*f.lanes*i, "BX"))
	}

	f.ret()
}

// fold writes x ^= x >> n for register 0.
func (f *file) fold(n int) {
	f.op("VPSRLD $%d, {0}, {2}", n)
	f.op("VPXOR%s {2}, {0}, {0}", f.suffixD())
}

// suffixD is what AVX-512 appends to the names of bitwise operations.
func (f *file) suffixD() string {
	if f.wide() {
		return "D"
	}
	return ""
}

// hashing are the constants of the hash: an odd number near 2³²/φ and two multipliers that avalanche well with
// the shifts 16, 15, 16; and how many lanes there are.
func (f *file) hashConstants() []constant {
	return []constant{{"golden", 0x9e3779b1}, {"mix1", 0x7feb352d}, {"mix2", 0x846ca68b}, {"width", uint32(f.lanes)}}
}

// hashing copies a constant of the hash to all lanes.
func (f *file) hashing(name string, v int) {
	i := slices.IndexFunc(f.hashConstants(), func(c constant) bool { return c.name == name })
	f.op("VPBROADCASTD hashing<>+%d(SB), {%d}", 4*i, v)
}

// counting writes the constants of the hash and the numbers of the lanes.
func (f *file) counting() {
	f.raw("\n// Constants of the hash, and the numbers of the lanes.")
	for i, c := range f.hashConstants() {
		f.raw("DATA hashing<>+%d(SB)/4, $0x%08x", 4*i, c.bits)
	}
	f.raw("GLOBL hashing<>(SB), RODATA|NOPTR, $16")
	for i := 0; i < f.lanes; i += 2 {
		f.raw("DATA counting<>+%d(SB)/8, $0x%08x%08x", 4*i, i+1, i)
	}
	f.raw("GLOBL counting<>(SB), RODATA|NOPTR, $%d", 4*f.lanes)
}
