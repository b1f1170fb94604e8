package main

import (
	"fmt"
	"math/bits"
)

// The loops of this file merge bfloat16 words to bfloat16 words without a detour over float32 in memory. Their
// lengths are whole numbers of steps; results that are not finite are not rounded properly, and the highest
// magnitude tells of them.

// bank says which registers a loop over several inputs uses. AVX-512 takes four vectors of every input at a
// time, AVX2 one.
type bank struct {
	acc, base, tmp, num, den, cnt          []int
	w, peak, magnitude, round, one, lambda int
	t                                      [3]int
}

func (f *file) bank() bank {
	if f.wide() {
		return bank{
			acc: []int{0, 1, 2, 3}, base: []int{4, 5, 6, 7}, tmp: []int{8, 9, 10, 11}, num: []int{28, 29, 30, 31},
			den: []int{20, 21, 22, 23},
			cnt: []int{24, 25, 26, 27}, w: 12, peak: 13, magnitude: 14, round: 15, one: 16, lambda: 17,
			t: [3]int{18, 19, 12},
		}
	}

	return bank{
		acc: []int{0}, base: []int{1}, tmp: []int{2}, num: []int{12}, den: []int{13}, cnt: []int{14},
		w: 3, peak: 4, magnitude: 5, round: 6, one: 7, lambda: 8, t: [3]int{9, 10, 11},
	}
}

// Bytes that a step takes of every input, and how far ahead inputs are fetched.
func (f *file) step() int { return 2 * f.lanes * len(f.bank().acc) }

const fetchAhead = 2048

// words loads a step of 16-bit words as float32. reg holds the address of the input; AX is the place within it.
func (f *file) words(reg string, to []int) {
	for i, v := range to {
		f.op("VPMOVZXWD %d(%s)(AX*1), {%d}", 2*f.lanes*i, reg, v)
	}
	for at := 0; at < f.step(); at += 64 {
		f.op("PREFETCHT0 %d(%s)(AX*1)", fetchAhead+at, reg)
	}
	for _, v := range to {
		f.op("VPSLLD $16, {%d}, {%d}", v, v)
	}
}

// mixing writes the loops.
func mixing(f *file) {
	f.mix(false)
	f.mix(true)
	for _, random := range []bool{false, true} {
		f.sparse(random, false)
		f.sparse(random, true)
	}
	f.pairLoops()
	f.tallyDelta()
	f.signs()
	f.equal(false)
	f.equal(true)
}

var pointers = "[]*uint16"

// begin loads what all loops need: DI and CX the output and its length, SI the base, R8 the inputs, R9 their
// number, R10 their weights.
func (f *file) begin(b bank, base bool) {
	f.load("DI", "dst_base")
	f.load("CX", "dst_len")

	if base {
		f.load("SI", "base_base")
		f.spread("lambda", b.lambda)
	}

	f.load("R8", "x_base")
	f.load("R9", "x_len")
	f.load("R10", "w_base")
	f.zero(b.peak)
	f.set("magnitude", b.magnitude)
	f.set("bf16round", b.round)
	f.set("intone", b.one)
	f.op("XORL AX, AX")
}

// steps runs body for every step of the output.
func (f *file) steps(body func()) {
	loop, done := f.label("step"), f.label("end")
	f.op("SUBQ $%d, CX", f.step()/2)
	f.op("JLT %s", done)
	f.at(loop)
	body()
	f.op("ADDQ $%d, AX", f.step())
	f.op("SUBQ $%d, CX", f.step()/2)
	f.op("JGE %s", loop)
	f.at(done)
}

// inputs runs body for every input: BX counts them, DX is the input's address.
func (f *file) inputs(body func()) {
	loop := f.label("input")
	f.op("XORL BX, BX")
	f.at(loop)
	f.op("MOVQ (R8)(BX*8), DX")
	body()
	f.op("INCQ BX")
	f.op("CMPQ BX, R9")
	f.op("JLT %s", loop)
}

// finish rounds the results and stores them.
func (f *file) finish(b bank) {
	for i, v := range b.acc {
		t, u := b.t[0], b.t[1]
		f.and(b.magnitude, v, t)
		f.op("VPMAXSD {%d}, {%d}, {%d}", t, b.peak, b.peak)
		f.op("VPSRLD $16, {%d}, {%d}", v, u)
		f.and(b.one, u, u)
		f.op("VPADDD {%d}, {%d}, {%d}", b.round, u, u)
		f.op("VPADDD {%d}, {%d}, {%d}", v, u, u)
		f.op("VPSRLD $16, {%d}, {%d}", u, u)

		mem := fmt.Sprintf("%d(DI)(AX*1)", 2*f.lanes*i)
		if f.wide() {
			f.op("VPMOVDW {%d}, %s", u, mem)
			continue
		}

		f.op("VEXTRACTI128 $1, Y%d, X%d", u, t)
		f.op("VPACKUSDW X%d, X%d, X%d", t, u, u)
		f.op("VMOVDQU X%d, %s", u, mem)
	}
}

func (f *file) and(a, b, to int) { f.op("VPAND%s {%d}, {%d}, {%d}", f.suffixD(), a, b, to) }

// highest returns the highest lane of the peak.
func (f *file) highest(b bank) {
	f.op("VMOVDQU%s {%d}, {8}", map[bool]string{true: "32"}[f.wide()], b.peak)

	if f.wide() {
		f.op("VEXTRACTI32X8 $1, Z8, Y9")
		f.op("VPMAXSD Y9, Y8, Y8")
	}

	f.op("VEXTRACTI128 $1, Y8, X9")
	f.op("VPMAXSD X9, X8, X8")
	f.op("VPSHUFD $0x4e, X8, X9")
	f.op("VPMAXSD X9, X8, X8")
	f.op("VPSHUFD $0xb1, X8, X9")
	f.op("VPMAXSD X9, X8, X8")
}

// mix adds up inputs, or their differences to the base.
func (f *file) mix(delta bool) {
	b := f.bank()

	if delta {
		f.fn("mixDelta", "dst = base + lambda·Σ w[j]·(x[j] - base) in bfloat16, added in the order of j; ret = the "+
			"highest magnitude before rounding", "float32",
			param{"dst", words}, param{"base", words}, param{"x", pointers}, param{"w", floats},
			param{"lambda", "float32"})
	} else {
		f.fn("mix", "dst = Σ w[j]·x[j] in bfloat16, added in the order of j; ret = the highest magnitude "+
			"before rounding", "float32",
			param{"dst", words}, param{"x", pointers}, param{"w", floats})
	}

	f.begin(b, delta)
	f.steps(func() {
		if delta {
			f.words("SI", b.base)
			for _, v := range b.acc {
				f.zero(v)
			}

			f.inputs(func() {
				f.words("DX", b.tmp)
				f.op("VBROADCASTSS (R10)(BX*4), {%d}", b.w)
				for i, v := range b.tmp {
					f.op("VSUBPS {%d}, {%d}, {%d}", b.base[i], v, v)
					f.op("VFMADD231PS {%d}, {%d}, {%d}", v, b.w, b.acc[i])
				}
			})

			f.addBase(b)
		} else {
			f.first(b)
		}

		f.finish(b)
	})

	f.highest(b)
	f.op("VMOVSS X8, %s", f.arg("ret"))
	f.ret()
}

// first multiplies the first input and adds the others, so that a product of -0 stays what it is.
func (f *file) first(b bank) {
	loop, done := f.label("input"), f.label("last")
	f.op("MOVQ (R8), DX")
	f.words("DX", b.acc)
	f.op("VBROADCASTSS (R10), {%d}", b.w)
	for _, v := range b.acc {
		f.op("VMULPS {%d}, {%d}, {%d}", b.w, v, v)
	}

	f.op("MOVQ $1, BX")
	f.op("CMPQ BX, R9")
	f.op("JGE %s", done)
	f.at(loop)
	f.op("MOVQ (R8)(BX*8), DX")
	f.words("DX", b.tmp)
	f.op("VBROADCASTSS (R10)(BX*4), {%d}", b.w)
	for i, v := range b.tmp {
		f.op("VFMADD231PS {%d}, {%d}, {%d}", v, b.w, b.acc[i])
	}

	f.op("INCQ BX")
	f.op("CMPQ BX, R9")
	f.op("JLT %s", loop)
	f.at(done)
}

// addBase turns totals into base + lambda·total.
func (f *file) addBase(b bank) {
	for i, v := range b.acc {
		f.op("VFMADD213PS {%d}, {%d}, {%d}", b.base[i], b.lambda, v)
	}
}

// sparse adds up differences of which only some are kept: those with a magnitude in a window, or a random
// choice. With a consensus, only those count whose sign is that of the sum.
func (f *file) sparse(random, consensus bool) {
	b := f.bank()
	name, keep := "window", "lo[j] ≤ bits(|x[j] - base|) ≤ hi[j]"
	params := []param{{"dst", words}, {"base", words}, {"x", pointers}, {"w", floats}, {"lambda", "float32"}}
	if random {
		name, keep = "random", "hash(first+i, key[3j], key[3j+1]) < key[3j+2]"
		params = append(params, param{"key", keys}, param{"first", "uint32"})
	} else {
		params = append(params, param{"lo", keys}, param{"hi", keys})
	}

	doc := "v[j] = w[j]·(x[j] - base) where " + keep + ", else 0; dst = base + lambda·"
	if consensus {
		name += "Elect"
		doc += "Σ v[j] / (Σ den[j], 1 for 0), over the j whose v[j] has the sign of the sum of all; den may be " +
			"empty, for 1"
		params = append(params, param{"den", floats}, param{"scratch", floats})
	} else {
		name += "Sum"
		doc += "Σ v[j]"
	}

	f.fn(name, doc+"; in bfloat16; ret = the highest magnitude before rounding, of differences and results", "float32",
		params...)
	f.begin(b, true)

	if random {
		f.load("R11", "key_base")
		f.spread("first", b.t[0])
		f.op("VPADDD counting<>(SB), {%d}, {%d}", b.t[0], b.cnt[0])
		f.hashing("width", b.t[0])
		for i := range b.cnt[1:] {
			f.op("VPADDD {%d}, {%d}, {%d}", b.t[0], b.cnt[i], b.cnt[i+1])
		}
	} else {
		f.load("R11", "lo_base")
		f.load("R12", "hi_base")
	}

	f.steps(func() {
		f.words("SI", b.base)
		for _, v := range b.acc {
			f.zero(v)
		}
		if consensus {
			f.load("R13", "scratch_base")
		}

		f.inputs(func() { f.keep(b, random, consensus) })
		if consensus {
			f.elected(b)
		}

		f.addBase(b)
		f.finish(b)

		if random {
			f.hashing("width", b.t[0])
			f.op("VPSLLD $%d, {%d}, {%d}", bits.Len(uint(len(b.cnt)))-1, b.t[0], b.t[0])
			for _, v := range b.cnt {
				f.op("VPADDD {%d}, {%d}, {%d}", b.t[0], v, v)
			}
		}
	})

	f.highest(b)
	f.op("VMOVSS X8, %s", f.arg("ret"))
	f.ret()
}

// keep adds what is kept of an input; with a consensus it is also stored at R13.
func (f *file) keep(b bank, random, consensus bool) {
	f.words("DX", b.tmp)
	for i, v := range b.tmp {
		f.op("VSUBPS {%d}, {%d}, {%d}", b.base[i], v, v)
	}

	if random {
		f.chosen(b)
	} else {
		f.windowed(b)
	}

	f.op("VBROADCASTSS (R10)(BX*4), {%d}", b.w)

	for i, v := range b.tmp {
		if !consensus {
			f.op("VFMADD231PS {%d}, {%d}, {%d}", v, b.w, b.acc[i])
			continue
		}

		f.op("VMULPS {%d}, {%d}, {%d}", b.w, v, v)
		f.op("VADDPS {%d}, {%d}, {%d}", v, b.acc[i], b.acc[i])
		f.op("VMOVUPS {%d}, %s", v, offset(4*f.lanes*i, "R13"))
	}

	if consensus {
		f.op("ADDQ $%d, R13", 2*f.step())
	}
}

// windowed clears differences whose magnitude is outside of the window.
func (f *file) windowed(b bank) {
	t, lo, hi := b.t[0], b.t[1], b.t[2]
	f.op("VPBROADCASTD (R11)(BX*4), {%d}", lo)
	f.op("VPBROADCASTD (R12)(BX*4), {%d}", hi)

	for _, v := range b.tmp {
		f.and(b.magnitude, v, t)
		f.op("VPMAXSD {%d}, {%d}, {%d}", t, b.peak, b.peak)

		if f.wide() {
			f.op("VPCMPD $5, {%d}, {%d}, K2", lo, t)
			f.op("VPCMPD $2, {%d}, {%d}, K2, K3", hi, t)
			f.op("VMOVAPS.Z {%d}, K3, {%d}", v, v)
			continue
		}

		f.op("VPCMPGTD {%d}, {%d}, {%d}", t, lo, b.num[0])
		f.op("VPCMPGTD {%d}, {%d}, {%d}", hi, t, t)
		f.op("VPOR {%d}, {%d}, {%d}", b.num[0], t, t)
		f.op("VPANDN {%d}, {%d}, {%d}", v, t, v)
	}
}

// chosen clears differences whose random number is not below the threshold.
func (f *file) chosen(b bank) {
	f.op("LEAQ (BX)(BX*2), R12")
	t, u, c := b.t[0], b.t[1], b.t[2]
	fold := func(n int) {
		f.op("VPSRLD $%d, {%d}, {%d}", n, t, u)
		f.op("VPXOR%s {%d}, {%d}, {%d}", f.suffixD(), u, t, t)
	}

	multiply := func(name string) {
		f.hashing(name, c)
		f.op("VPMULLD {%d}, {%d}, {%d}", c, t, t)
	}

	key := func(n int) { f.op("VPBROADCASTD %d(R11)(R12*4), {%d}", 4*n, c) }
	for i, v := range b.tmp {
		f.and(b.magnitude, v, t)
		f.op("VPMAXSD {%d}, {%d}, {%d}", t, b.peak, b.peak)
		f.hashing("golden", c)
		f.op("VPMULLD {%d}, {%d}, {%d}", c, b.cnt[i], t)
		key(0)
		f.op("VPADDD {%d}, {%d}, {%d}", c, t, t)
		fold(16)
		multiply("mix1")
		fold(15)
		key(1)
		f.op("VPADDD {%d}, {%d}, {%d}", c, t, t)
		multiply("mix2")
		fold(16)

		if f.wide() {
			key(2)
			f.op("VPCMPUD $1, {%d}, {%d}, K2", c, t)
			f.op("VMOVAPS.Z {%d}, K2, {%d}", v, v)
			continue
		}

		f.set("sign", u)
		f.op("VPXOR {%d}, {%d}, {%d}", u, t, t)
		key(2)
		f.op("VPXOR {%d}, {%d}, {%d}", u, c, c)
		f.op("VPCMPGTD {%d}, {%d}, {%d}", t, c, c)
		f.op("VANDPS {%d}, {%d}, {%d}", c, v, v)
	}
}

// elected replaces the totals by the sums of what has their sign, divided if there are divisors.
func (f *file) elected(b bank) {
	loop := f.label("elect")
	plain := f.label("plain")
	done := f.label("elected")

	for i := range b.acc {
		f.zero(b.num[i])
		f.zero(b.den[i])
	}

	f.load("R13", "scratch_base")
	f.load("DX", "den_base")
	f.op("CMPQ %s, $0", f.arg("den_len"))
	f.op("JEQ %s", plain)

	for _, divided := range []bool{true, false} {
		l := loop
		if !divided {
			f.at(plain)
			l += "plain"
		}

		f.op("XORL BX, BX")
		f.at(l)
		if divided {
			f.op("VBROADCASTSS (DX)(BX*4), {%d}", b.w)
		}
		for i := range b.acc {
			f.elect(b, i, divided)
		}

		f.op("ADDQ $%d, R13", 2*f.step())
		f.op("INCQ BX")
		f.op("CMPQ BX, R9")
		f.op("JLT %s", l)

		for i, v := range b.acc {
			if divided {
				f.divideOrNot(b, i)
			}
			f.op("VMOVAPS {%d}, {%d}", b.num[i], v)
		}

		if divided {
			f.op("JMP %s", done)
		}
	}

	f.at(done)
}

// elect adds vector i of an input where it has the sign of the total, + for a total of 0.
func (f *file) elect(b bank, i int, divided bool) {
	v := b.tmp[i]
	zero := b.t[0]
	total := b.acc[i]
	f.op("VMOVUPS %s, {%d}", offset(4*f.lanes*i, "R13"), v)
	f.zero(zero)

	if f.wide() {
		f.op("VCMPPS $13, {%d}, {%d}, K2", zero, total)
		f.op("VCMPPS $14, {%d}, {%d}, K2, K3", zero, v)
		f.op("KNOTW K2, K2")
		f.op("VCMPPS $1, {%d}, {%d}, K2, K4", zero, v)
		f.op("KORW K3, K4, K3")
		f.op("VADDPS {%d}, {%d}, K3, {%d}", v, b.num[i], b.num[i])
		if divided {
			f.op("VADDPS {%d}, {%d}, K3, {%d}", b.w, b.den[i], b.den[i])
		}

		return
	}

	plus, over := b.t[1], b.t[2]
	f.op("VCMPPS $13, {%d}, {%d}, {%d}", zero, total, plus)
	f.op("VCMPPS $14, {%d}, {%d}, {%d}", zero, v, over)
	f.op("VCMPPS $1, {%d}, {%d}, {%d}", zero, v, zero)
	f.op("VBLENDVPS {%d}, {%d}, {%d}, {%d}", plus, over, zero, plus)
	f.op("VANDPS {%d}, {%d}, {%d}", plus, v, v)
	f.op("VADDPS {%d}, {%d}, {%d}", v, b.num[i], b.num[i])

	if divided {
		f.op("VANDPS {%d}, {%d}, {%d}", plus, b.w, over)
		f.op("VADDPS {%d}, {%d}, {%d}", over, b.den[i], b.den[i])
	}
}

// divideOrNot divides vector i, by 1 where the divisor is 0. AVX-512 divides by an approximate reciprocal, once
// improved, and corrects the quotient by its remainder, which is as exact to 1e-7 of a unit and takes a third
// of the time; a divisor without a reciprocal gives NaN.
func (f *file) divideOrNot(b bank, i int) {
	zero, one := b.t[0], b.t[1]
	f.zero(zero)
	f.set("one", one)

	if f.wide() {
		f.op("VCMPPS $0, {%d}, {%d}, K2", zero, b.den[i])
		f.op("VMOVAPS {%d}, K2, {%d}", one, b.den[i])
		inverse, quotient := zero, one

		f.op("VRCP14PS {%d}, {%d}", b.den[i], inverse)
		f.op("VFNMADD231PS {%d}, {%d}, {%d}", b.den[i], inverse, one)
		f.op("VFMADD213PS {%d}, {%d}, {%d}", inverse, one, inverse)
		f.op("VMULPS {%d}, {%d}, {%d}", inverse, b.num[i], quotient)
		f.op("VFNMADD231PS {%d}, {%d}, {%d}", b.den[i], quotient, b.num[i])
		f.op("VFMADD213PS {%d}, {%d}, {%d}", quotient, inverse, b.num[i])
		return
	}

	f.op("VCMPPS $0, {%d}, {%d}, {%d}", zero, b.den[i], zero)
	f.op("VBLENDVPS {%d}, {%d}, {%d}, {%d}", zero, one, b.den[i], b.den[i])
	f.op("VDIVPS {%d}, {%d}, {%d}", b.den[i], b.num[i], b.num[i])
}

// pairLoops write the products of two inputs, or of their differences to the base, summed in float64.
func (f *file) pairLoops() {
	for _, delta := range []bool{false, true} {
		doc := "ret[0] += x·x, ret[1] += x·y, ret[2] += y·y, in float64"
		if delta {
			f.fn("pairDelta", doc+", of x - base and y - base in float32", "", param{"sums", "[]float64"},
				param{"x", words}, param{"y", words}, param{"base", words})
			f.load("R8", "base_base")
		} else {
			f.fn("pair", doc, "", param{"sums", "[]float64"}, param{"x", words}, param{"y", words})
		}

		f.load("BX", "sums_base")
		f.load("SI", "x_base")
		f.load("DX", "y_base")
		f.load("CX", "x_len")
		f.op("XORL AX, AX")
		for v := 8; v < 14; v++ {
			f.zero(v)
		}

		loop, done := f.label("loop"), f.label("done")
		f.op("SUBQ $%d, CX", f.lanes)
		f.op("JLT %s", done)
		f.at(loop)
		f.pairStep(delta)
		f.op("ADDQ $%d, AX", 2*f.lanes)
		f.op("SUBQ $%d, CX", f.lanes)
		f.op("JGE %s", loop)
		f.at(done)

		for i := range 3 {
			f.op("VMOVSD %d(BX), X0", 8*i)
			f.totalTo(8+2*i, 9+2*i, fmt.Sprintf("%d(BX)", 8*i))
			f.op("VADDSD %d(BX), X0, X0", 8*i)
			f.op("VMOVSD X0, %d(BX)", 8*i)
		}

		f.ret()
	}
}

func (f *file) pairStep(delta bool) {
	load := func(reg string, v int) {
		f.op("VPMOVZXWD (%s)(AX*1), {%d}", reg, v)
		f.op("PREFETCHT0 %d(%s)(AX*1)", fetchAhead, reg)
		f.op("VPSLLD $16, {%d}, {%d}", v, v)
	}

	if delta {
		load("R8", 7)
	}

	load("SI", 0)
	if delta {
		f.op("VSUBPS {7}, {0}, {0}")
	}

	f.widenHalves()
	f.op("VMOVAPD {1}, {4}")
	f.op("VMOVAPD {2}, {5}")
	load("DX", 0)
	if delta {
		f.op("VSUBPS {7}, {0}, {0}")
	}

	f.widenHalves()

	for i := range 2 {
		f.op("VFMADD231PD {%d}, {%d}, {%d}", 4+i, 4+i, 8+i)
		f.op("VFMADD231PD {%d}, {%d}, {%d}", 1+i, 4+i, 10+i)
		f.op("VFMADD231PD {%d}, {%d}, {%d}", 1+i, 1+i, 12+i)
	}
}

// tallyDelta is tally of the differences of words.
func (f *file) tallyDelta() {
	f.fn("tallyDelta", "m = bits(|x[i] - base[i]|): count[0] += m > hi, count[1] += m ≥ hi, count[2] += m > lo, "+
		"count[3] += m ≥ lo, count[4] = max(m), and appends m with lo < m < hi to out, which has room for a vector "+
		"beyond len(x); ret = how many", "int",
		param{"x", words}, param{"base", words}, param{"lo", "uint32"}, param{"hi", "uint32"},
		param{"count", "[]int64"}, param{"out", keys})

	f.load("SI", "x_base")
	f.load("DX", "base_base")
	f.load("CX", "x_len")
	f.load("DI", "out_base")
	f.tallyBounds()
	f.zero(8)
	f.op("XORL AX, AX")

	loop, done := f.label("loop"), f.label("done")
	f.op("SUBQ $%d, CX", f.lanes)
	f.op("JLT %s", done)
	f.at(loop)

	for _, r := range []struct {
		reg string
		v   int
	}{{"SI", 0}, {"DX", 7}} {
		f.op("VPMOVZXWD (%s)(AX*1), {%d}", r.reg, r.v)
		f.op("PREFETCHT0 %d(%s)(AX*1)", fetchAhead, r.reg)
		f.op("VPSLLD $16, {%d}, {%d}", r.v, r.v)
	}

	f.op("VSUBPS {7}, {0}, {0}")
	f.op("VANDPS {14}, {0}, {0}")
	f.op("VPMAXSD {0}, {8}, {8}")

	if f.wide() {
		f.tallyWide(false)
	} else {
		f.op("VMOVDQU {0}, (DI)") // there is room for a vector, from which some are picked and brought to its front
		f.op("MOVQ DI, BX")
		f.tallyNarrow(false, "BX")
	}

	f.op("ADDQ $%d, AX", 2*f.lanes)
	f.op("SUBQ $%d, CX", f.lanes)
	f.op("JGE %s", loop)
	f.at(done)
	f.tallyEnd()

	b := f.bank()
	b.peak = 8
	f.highest(b)
	f.op("VMOVD X8, AX")
	f.op("MOVQ AX, 32(BX)")
	f.ret()
}

// signs counts what is left of a difference for conflicts between models.
func (f *file) signs() {
	f.fn("signs", "d = x[i] - base[i] where bits(|x[i] - base[i]|) ≥ lo, else 0: net[i] += d, bit i of plus = d > "+
		"0, of minus = d < 0, sum[0] += |d| in float64; ret = the highest |x[i] - base[i]|", "float32",
		param{"x", words}, param{"base", words}, param{"lo", "uint32"}, param{"net", floats}, param{"plus", "[]uint64"},
		param{"minus", "[]uint64"}, param{"sum", "[]float64"})

	f.load("SI", "x_base")
	f.load("CX", "x_len")
	f.load("DX", "base_base")
	f.load("DI", "net_base")
	f.load("R8", "plus_base")
	f.load("R9", "minus_base")
	f.set("magnitude", 14)
	f.spread("lo", 12)
	for _, v := range []int{3, 8, 9, 10} {
		f.zero(v)
	}

	f.op("XORL AX, AX")
	loop, done := f.label("loop"), f.label("done")
	f.op("SUBQ $%d, CX", f.lanes)
	f.op("JLT %s", done)
	f.at(loop)
	f.signsStep()
	f.op("ADDQ $%d, AX", 2*f.lanes)
	f.op("SUBQ $%d, CX", f.lanes)
	f.op("JGE %s", loop)
	f.at(done)
	f.load("BX", "sum_base")
	f.op("VMOVSD (BX), X0")
	f.totalTo(9, 10, "(BX)")
	f.op("VADDSD (BX), X0, X0")
	f.op("VMOVSD X0, (BX)")

	b := f.bank()
	b.peak = 8
	f.highest(b)
	f.op("VMOVSS X8, %s", f.arg("ret"))
	f.ret()
}

// signsStep takes a vector: 3 is zero, 8 the peak, 9 and 10 the sums, 12 the bound, 14 the mask of magnitudes.
func (f *file) signsStep() {
	for _, r := range []struct {
		reg string
		v   int
	}{{"SI", 0}, {"DX", 7}} {
		f.op("VPMOVZXWD (%s)(AX*1), {%d}", r.reg, r.v)
		f.op("PREFETCHT0 %d(%s)(AX*1)", fetchAhead, r.reg)
		f.op("VPSLLD $16, {%d}, {%d}", r.v, r.v)
	}

	f.op("VSUBPS {7}, {0}, {0}")
	f.op("VANDPS {14}, {0}, {1}")
	f.op("VPMAXSD {1}, {8}, {8}")

	if f.wide() {
		f.op("VPCMPD $5, {12}, {1}, K2")
		f.op("VMOVAPS.Z {0}, K2, {0}")
		f.op("VCMPPS $14, {3}, {0}, K3")
		f.op("VCMPPS $1, {3}, {0}, K4")
		f.op("KMOVW K3, (R8)")
		f.op("KMOVW K4, (R9)")
	} else {
		f.op("VPCMPGTD {1}, {12}, {1}")
		f.op("VPANDN {0}, {1}, {0}")
		f.op("VCMPPS $14, {3}, {0}, {4}")
		f.op("VCMPPS $1, {3}, {0}, {5}")
		f.op("VMOVMSKPS {4}, BX")
		f.op("MOVB BX, (R8)")
		f.op("VMOVMSKPS {5}, BX")
		f.op("MOVB BX, (R9)")
	}

	f.op("ADDQ $%d, R8", f.lanes/8)
	f.op("ADDQ $%d, R9", f.lanes/8)
	f.op("VADDPS (DI)(AX*2), {0}, {4}")
	f.op("VMOVUPS {4}, (DI)(AX*2)")
	f.op("VANDPS {14}, {0}, {0}")
	f.widenHalves()
	f.op("VADDPD {1}, {9}, {9}")
	f.op("VADDPD {2}, {10}, {10}")
}

// equal marks what equals a threshold, of values or of the differences of words.
func (f *file) equal(delta bool) {
	value := param{"value", "uint32"}
	set := param{"set", "[]uint64"}
	if delta {
		f.fn("equalDelta", "bit i%64 of set[i/64] = bits(|x[i] - base[i]|) is value", "", param{"x", words},
			param{"base", words}, value, set)
		f.load("DX", "base_base")
	} else {
		f.fn("equal", "bit i%64 of set[i/64] = bits(|x[i]|) is value", "", param{"x", floats}, value, set)
	}

	f.load("SI", "x_base")
	f.load("CX", "x_len")
	f.load("DI", "set_base")
	f.set("magnitude", 14)
	f.spread("value", 12)

	f.op("XORL AX, AX")
	loop, done := f.label("loop"), f.label("done")
	f.op("SUBQ $%d, CX", f.lanes)
	f.op("JLT %s", done)
	f.at(loop)

	if delta {
		f.op("VPMOVZXWD (SI)(AX*1), {0}")
		f.op("VPMOVZXWD (DX)(AX*1), {7}")
		f.op("VPSLLD $16, {0}, {0}")
		f.op("VPSLLD $16, {7}, {7}")
		f.op("VSUBPS {7}, {0}, {0}")
	} else {
		f.op("VMOVUPS (SI)(AX*2), {0}")
	}

	f.op("VANDPS {14}, {0}, {0}")
	if f.wide() {
		f.op("VPCMPEQD {12}, {0}, K2")
		f.op("KMOVW K2, (DI)")
	} else {
		f.op("VPCMPEQD {12}, {0}, {0}")
		f.op("VMOVMSKPS {0}, BX")
		f.op("MOVB BX, (DI)")
	}

	f.op("ADDQ $%d, DI", f.lanes/8)
	f.op("ADDQ $%d, AX", 2*f.lanes)
	f.op("SUBQ $%d, CX", f.lanes)
	f.op("JGE %s", loop)
	f.at(done)
	f.ret()
}
