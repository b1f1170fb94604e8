package main

// rowAttention writes the loops of attention for one query at a time, along the channels.
func rowAttention(f *file) {
	dotsLoop(f)
	weighLoop(f)
}

// dotsLoop takes four keys at a time: R8 to R11 are their rows, accumulated in registers 0 to 3.
func dotsLoop(f *file) {
	f.fn("dots", "for j { s[j] = Σ_c q[c]·k[j·stride + c] }", "",
		param{"s", floats}, param{"q", floats}, param{"k", floats}, param{"stride", "int"})
	f.load("DI", "s_base")
	f.load("R13", "s_len")
	f.load("SI", "q_base")
	f.load("CX", "q_len")
	f.load("R8", "k_base")
	f.load("R12", "stride")
	f.op("SHLQ $2, R12")
	f.tailOf()

	four := f.label("four")
	one := f.label("one")
	done := f.label("done")

	f.at(four)
	f.op("SUBQ $4, R13")
	f.op("JLT %s", one)
	f.op("LEAQ (R8)(R12*1), R9")
	f.op("LEAQ (R9)(R12*1), R10")
	f.op("LEAQ (R10)(R12*1), R11")
	f.dot("R8", "R9", "R10", "R11")
	f.reduceFour()
	f.op("VMOVUPS X0, (DI)")
	f.op("ADDQ $16, DI")
	f.op("LEAQ (R11)(R12*1), R8")
	f.op("JMP %s", four)
	f.at(one)
	f.op("ADDQ $4, R13")

	single := f.label("single")
	f.at(single)
	f.op("SUBQ $1, R13")
	f.op("JLT %s", done)
	f.dot("R8")
	f.reduceOne()
	f.op("VMOVSS X0, (DI)")
	f.op("ADDQ $4, DI")
	f.op("ADDQ R12, R8")
	f.op("JMP %s", single)
	f.at(done)
	f.ret()
}

// tailOf splits the length CX: CX becomes the bytes in whole vectors, DX the elements left, with their mask prepared.
func (f *file) tailOf() {
	f.op("MOVQ CX, DX")
	f.op("ANDQ $%d, CX", f.lanes-1)
	f.op("SUBQ CX, DX")
	f.tailMask()
	f.op("XCHGQ CX, DX")
	f.op("SHLQ $2, CX")
}

// dot sums q times each row into registers 0 and up; AX runs over the bytes of the whole vectors.
func (f *file) dot(rows ...string) {
	loop := f.label("channels")
	tail := f.label("rest")
	done := f.label("end")
	for i := range rows {
		f.zero(i)
	}

	f.op("XORQ AX, AX")
	f.op("CMPQ AX, CX")
	f.op("JGE %s", tail)
	f.at(loop)
	f.op("VMOVUPS (SI)(AX*1), {4}")
	for i, r := range rows {
		f.op("VFMADD231PS (%s)(AX*1), {4}, {%d}", r, i)
	}

	f.op("ADDQ $%d, AX", 4*f.lanes)
	f.op("CMPQ AX, CX")
	f.op("JLT %s", loop)
	f.at(tail)
	f.op("TESTQ DX, DX")
	f.op("JZ %s", done)
	f.get("(SI)(AX*1)", 4, true)

	for i, r := range rows {
		f.get("("+r+")(AX*1)", 5, true)
		f.op("VFMADD231PS {5}, {4}, {%d}", i)
	}

	f.at(done)
}

// reduceFour puts the sums of registers 0 to 3 into the four lanes of X0.
func (f *file) reduceFour() {
	if f.wide() {
		for i := range 4 {
			f.op("VEXTRACTF32X8 $1, Z%d, Y4", i)
			f.op("VADDPS Y4, Y%d, Y%d", i, i)
		}
	}

	f.op("VHADDPS Y1, Y0, Y0")
	f.op("VHADDPS Y3, Y2, Y2")
	f.op("VHADDPS Y2, Y0, Y0")
	f.op("VEXTRACTF128 $1, Y0, X1")
	f.op("VADDPS X1, X0, X0")
}

// reduceOne puts the sum of register 0 into the lowest lane of X0.
func (f *file) reduceOne() {
	if f.wide() {
		f.op("VEXTRACTF32X8 $1, Z0, Y4")
		f.op("VADDPS Y4, Y0, Y0")
	}
	f.op("VHADDPS Y0, Y0, Y0")
	f.op("VHADDPS Y0, Y0, Y0")
	f.op("VEXTRACTF128 $1, Y0, X1")
	f.op("VADDPS X1, X0, X0")
}

// weighLoop takes the channels in runs of eight, four, two and one vector, and the rest; the sums of a run stay in
// registers while all values are read.
func weighLoop(f *file) {
	f.fn("weigh", "for c { o[c] = o[c]·carry + Σ_j p[j]·v[j·stride + c] }", "",
		param{"o", floats}, param{"p", floats}, param{"v", floats}, param{"stride", "int"}, param{"carry", "float32"})
	f.load("DI", "o_base")
	f.load("CX", "o_len")
	f.load("SI", "p_base")
	f.load("R13", "p_len")
	f.load("R8", "v_base")
	f.load("R12", "stride")
	f.op("SHLQ $2, R12")
	f.spread("carry", 13)

	for _, n := range []int{8, 4, 2, 1} {
		loop, next := f.label("run"), f.label("next")
		f.at(loop)
		f.op("CMPQ CX, $%d", n*f.lanes)
		f.op("JLT %s", next)
		f.weighRun(n, false)
		f.op("ADDQ $%d, DI", 4*n*f.lanes)
		f.op("ADDQ $%d, R8", 4*n*f.lanes)
		f.op("SUBQ $%d, CX", n*f.lanes)
		f.op("JMP %s", loop)
		f.at(next)
	}

	done := f.label("done")
	f.op("TESTQ CX, CX")
	f.op("JZ %s", done)
	f.tailMask()
	f.weighRun(1, true)
	f.at(done)
	f.ret()
}

// weighRun updates n vectors of channels: BX walks the weights, DX the values.
func (f *file) weighRun(n int, tail bool) {
	loop, done := f.label("values"), f.label("end")

	for i := range n {
		f.get(offset(4*f.lanes*i, "DI"), i, tail)
		f.op("VMULPS {13}, {%d}, {%d}", i, i)
	}

	f.op("MOVQ SI, BX")
	f.op("MOVQ R8, DX")
	f.op("LEAQ (SI)(R13*4), R9")
	f.op("CMPQ BX, R9")
	f.op("JGE %s", done)
	f.at(loop)
	f.op("VBROADCASTSS (BX), {12}")

	for i := range n {
		if tail {
			f.get("(DX)", 11, true)
			f.op("VFMADD231PS {11}, {12}, {%d}", i)
		} else {
			f.op("VFMADD231PS %s, {12}, {%d}", offset(4*f.lanes*i, "DX"), i)
		}
	}

	f.op("ADDQ $4, BX")
	f.op("ADDQ R12, DX")
	f.op("CMPQ BX, R9")
	f.op("JLT %s", loop)
	f.at(done)
	for i := range n {
		f.put(i, offset(4*f.lanes*i, "DI"), tail)
	}
}

// vectors is the number of vectors in a lane block, rows the height of the register tile.
func (f *file) vectors() int {
	if f.wide() {
		return 2
	}
	return 3
}

func (f *file) tileRows() []int {
	if f.wide() {
		return []int{8, 4, 1}
	}
	return []int{4, 1}
}

// laneAttention writes the loops of attention for blocks of queries, one to a lane.
func laneAttention(f *file) {
	loadLoop(f)
	tileLoop(f)
	maskLoop(f)
	softLoop(f)
	storeLoop(f)
}

// rowBytes is the size of one row of a lane block.
func (f *file) rowBytes() int { return 4 * f.lanes * f.vectors() }

func loadLoop(f *file) {
	f.fn("laneLoad", "for c < channels, lane { dst[c, lane] = x[at[lane] + c] · scale }", "",
		param{"dst", floats}, param{"x", floats}, param{"at", "[]int32"}, param{"channels", "int"},
		param{"scale", "float32"})
	f.load("DI", "dst_base")
	f.load("SI", "x_base")
	f.load("DX", "at_base")
	f.load("CX", "channels")
	f.spread("scale", 14)
	for i := range f.vectors() {
		f.op("VMOVUPS %s, {%d}", offset(4*f.lanes*i, "DX"), 8+i)
	}

	loop := f.label("loop")
	f.at(loop)

	for i := range f.vectors() {
		if f.wide() {
			f.op("KXNORW K1, K1, K1")
			f.op("VGATHERDPS (SI)({%d}*4), K1, {%d}", 8+i, i)
		} else {
			f.op("VPCMPEQD {%d}, {%d}, {%d}", mask, mask, mask)
			f.op("VGATHERDPS {%d}, (SI)({%d}*4), {%d}", mask, 8+i, i)
		}

		f.op("VMULPS {14}, {%d}, {%d}", i, i)
		f.put(i, offset(4*f.lanes*i, "DI"), false)
	}

	f.op("ADDQ $4, SI")
	f.op("ADDQ $%d, DI", f.rowBytes())
	f.op("DECQ CX")
	f.op("JNZ %s", loop)
	f.ret()
}

// tileLoop is a matrix product with a row-strided left side: registers hold a tile of rows times all lanes.
func tileLoop(f *file) {
	f.fn("laneTile", "for r < rows, lane { dst[r, lane] = dst[r, lane]·carry[lane] + Σ_p<k a[r·row + p·step]·b[p, "+
		"lane] }    // no dst on the right if carry is nil", "",
		param{"dst", floats}, param{"a", floats}, param{"b", floats}, param{"carry", floats},
		param{"rows", "int"}, param{"k", "int"}, param{"row", "int"}, param{"step", "int"})

	f.load("DI", "dst_base")
	f.load("SI", "a_base")
	f.load("R8", "row")
	f.op("SHLQ $2, R8")
	f.load("R12", "step")
	f.op("SHLQ $2, R12")
	f.load("R13", "rows")
	f.op("LEAQ (R8)(R8*2), R9")
	f.op("LEAQ (R8)(R8*4), R10")
	f.op("LEAQ (R9)(R8*4), R11")

	for _, n := range f.tileRows() {
		loop, next := f.label("tile"), f.label("next")
		f.at(loop)
		f.op("CMPQ R13, $%d", n)
		f.op("JLT %s", next)
		f.tile(n)
		f.op("ADDQ $%d, DI", n*f.rowBytes())
		f.op("LEAQ (SI)(R8*%d), SI", n)
		f.op("SUBQ $%d, R13", n)
		f.op("JMP %s", loop)
		f.at(next)
	}

	f.ret()
}

// tileAddress is the address of row r of a, at the step that AX points to.
func tileAddress(r int) string {
	return []string{
		"(AX)", "(AX)(R8*1)", "(AX)(R8*2)", "(AX)(R9*1)", "(AX)(R8*4)", "(AX)(R10*1)", "(AX)(R9*2)",
		"(AX)(R11*1)",
	}[r]
}

// tile computes n rows. Accumulators come first, then the lanes of b, then the broadcast elements of a.
func (f *file) tile(n int) {
	v := f.vectors()
	lanes, spread := n*v, n*v+v
	fresh := f.label("fresh")
	start := f.label("start")
	loop := f.label("loop")
	done := f.label("done")

	f.op("MOVQ SI, AX")
	f.load("BX", "b_base")
	f.load("CX", "k")
	f.load("DX", "carry_base")
	f.op("TESTQ DX, DX")
	f.op("JZ %s", fresh)
	for i := range v {
		f.op("VMOVUPS %s, {%d}", offset(4*f.lanes*i, "DX"), lanes+i)
	}

	for r := range n {
		for i := range v {
			f.op("VMULPS %s, {%d}, {%d}", offset(r*f.rowBytes()+4*f.lanes*i, "DI"), lanes+i, r*v+i)
		}
	}

	f.op("JMP %s", start)
	f.at(fresh)
	for i := range n * v {
		f.zero(i)
	}

	f.at(start)
	f.op("TESTQ CX, CX")
	f.op("JZ %s", done)
	f.at(loop)
	for i := range v {
		f.op("VMOVUPS %s, {%d}", offset(4*f.lanes*i, "BX"), lanes+i)
	}

	for r := range n {
		b := spread
		if f.wide() {
			b += r % 4
		}

		f.op("VBROADCASTSS %s, {%d}", tileAddress(r), b)
		for i := range v {
			f.op("VFMADD231PS {%d}, {%d}, {%d}", lanes+i, b, r*v+i)
		}
	}

	f.op("ADDQ R12, AX")
	f.op("ADDQ $%d, BX", f.rowBytes())
	f.op("DECQ CX")
	f.op("JNZ %s", loop)
	f.at(done)

	for r := range n {
		for i := range v {
			f.put(r*v+i, offset(r*f.rowBytes()+4*f.lanes*i, "DI"), false)
		}
	}
}

// softLoop handles the vectors of a block one after the other. Registers: 8 highest, 9 what is subtracted, 10 sum.
func softLoop(f *file) {
	f.fn("laneSoft", "for lane { t = max(top[lane], max_j s[j, lane]); carry[lane] = exp(top[lane] - t); for j { "+
		"s[j, lane] = exp(s[j, lane] - t) }; sum[lane] = sum[lane]·carry[lane] + Σ_j s[j, lane]; top[lane] = t }", "",
		param{"s", floats}, param{"top", floats}, param{"sum", floats}, param{"carry", floats})
	f.load("DI", "s_base")
	f.load("SI", "top_base")
	f.load("DX", "sum_base")
	f.load("BX", "carry_base")
	f.load("R8", "s_len")
	f.op("LEAQ (DI)(R8*4), R8")
	f.set("expmin", lowLimit)
	for i := range f.vectors() {
		f.softVector(i)
	}

	f.ret()
}

func (f *file) softVector(i int) {
	at := 4 * f.lanes * i
	highest, exps := f.label("highest"), f.label("exps")
	f.op("VMOVUPS %s, {7}", offset(at, "SI"))
	f.op("VMOVUPS {7}, {8}")
	f.op("LEAQ %s, AX", offset(at, "DI"))
	f.at(highest)
	f.op("VMOVUPS (AX), {0}")
	f.op("VMAXPS {8}, {0}, {8}")
	f.op("ADDQ $%d, AX", f.rowBytes())
	f.op("CMPQ AX, R8")
	f.op("JLT %s", highest)
	f.op("VMOVUPS {8}, %s", offset(at, "SI"))
	f.set("minusinf", 0)

	if f.wide() { // subtract 0 where nothing but -Inf was seen
		f.op("VCMPPS $4, {0}, {8}, K1")
		f.op("VMOVAPS.Z {8}, K1, {9}")
	} else {
		f.op("VCMPPS $4, {0}, {8}, {0}")
		f.op("VANDPS {0}, {8}, {9}")
	}

	f.op("VSUBPS {9}, {7}, {0}")
	f.expNegative(0, lowLimit, 1, 2, 3)
	f.op("VMOVUPS {0}, %s", offset(at, "BX"))
	f.op("VMULPS %s, {0}, {10}", offset(at, "DX"))
	f.zero(11)
	f.op("LEAQ %s, AX", offset(at, "DI"))
	f.at(exps)
	f.op("VMOVUPS (AX), {0}")
	f.op("VSUBPS {9}, {0}, {0}")
	f.expNegative(0, lowLimit, 1, 2, 3)
	f.op("VMOVUPS {0}, (AX)")
	f.op("VADDPS {0}, {11}, {11}")
	f.op("ADDQ $%d, AX", f.rowBytes())
	f.op("CMPQ AX, R8")
	f.op("JLT %s", exps)
	f.op("VADDPS {11}, {10}, {10}")
	f.op("VMOVUPS {10}, %s", offset(at, "DX"))
}

// maskLoop hides keys: register 8 counts them, 9 to 11 hold the first keys that lanes see, 12 to 14 those after
// the last.
func maskLoop(f *file) {
	f.fn("laneMask", "for p, lane { if j + p < lo[lane] || j + p >= hi[lane] { s[p, lane] = -Inf } }", "",
		param{"s", floats}, param{"lo", "[]int32"}, param{"hi", "[]int32"}, param{"j", "int"})
	f.load("DI", "s_base")
	f.load("R8", "s_len")
	f.op("LEAQ (DI)(R8*4), R8")
	f.load("SI", "lo_base")
	f.load("DX", "hi_base")
	f.load("AX", "j")
	f.op("VMOVD AX, X8")
	f.op("VPBROADCASTD X8, {8}")

	for i := range f.vectors() {
		f.op("VMOVUPS %s, {%d}", offset(4*f.lanes*i, "SI"), 9+i)
		f.op("VMOVUPS %s, {%d}", offset(4*f.lanes*i, "DX"), 12+i)
	}

	f.set("minusinf", 7)
	loop := f.label("loop")
	f.at(loop)

	for i := range f.vectors() {
		at := offset(4*f.lanes*i, "DI")
		if f.wide() {
			f.op("VPCMPD $5, {%d}, {8}, K1", 12+i)
			f.op("VPCMPD $1, {%d}, {8}, K2", 9+i)
			f.op("KORW K1, K2, K1")
			f.op("VMOVUPS {7}, K1, %s", at)
			continue
		}

		f.op("VPCMPGTD {8}, {%d}, {0}", 12+i)
		f.op("VPCMPGTD {8}, {%d}, {1}", 9+i)
		f.op("VPANDN {0}, {1}, {0}")
		f.op("VMOVUPS %s, {1}", at)
		f.op("VBLENDVPS {0}, {1}, {7}, {1}")
		f.op("VMOVUPS {1}, %s", at)
	}

	f.opc("VPADDD", "intone", "{8}, {8}")
	f.op("ADDQ $%d, DI", f.rowBytes())
	f.op("CMPQ DI, R8")
	f.op("JLT %s", loop)
	f.ret()
}

// storeLoop writes one lane after the other.
func storeLoop(f *file) {
	f.fn("laneStore", "for lane < len(at), c < channels { dst[at[lane] + c] = x[c, lane] · scale[lane] }", "",
		param{"dst", floats}, param{"x", floats}, param{"scale", floats}, param{"at", "[]int32"},
		param{"channels", "int"})
	f.load("SI", "x_base")
	f.load("DX", "scale_base")
	f.load("BX", "at_base")
	f.load("R8", "at_len")

	lane := f.label("lane")
	four := f.label("four")
	rest := f.label("rest")
	one := f.label("one")
	next := f.label("next")

	f.at(lane)
	f.op("MOVLQSX (BX), DI")
	f.op("SHLQ $2, DI")
	f.op("ADDQ %s, DI", f.arg("dst_base"))
	f.op("VMOVSS (DX), X1")
	f.op("MOVQ SI, AX")
	f.load("CX", "channels")
	f.op("SUBQ $4, CX")
	f.op("JLT %s", rest)
	f.at(four)

	for i := range 4 {
		f.op("VMULSS %s, X1, X%d", offset(i*f.rowBytes(), "AX"), 2+i)
		f.op("VMOVSS X%d, %s", 2+i, offset(4*i, "DI"))
	}

	f.op("ADDQ $%d, AX", 4*f.rowBytes())
	f.op("ADDQ $16, DI")
	f.op("SUBQ $4, CX")
	f.op("JGE %s", four)
	f.at(rest)
	f.op("ADDQ $4, CX")
	f.op("JZ %s", next)
	f.at(one)
	f.op("VMULSS (AX), X1, X0")
	f.op("VMOVSS X0, (DI)")
	f.op("ADDQ $%d, AX", f.rowBytes())
	f.op("ADDQ $4, DI")
	f.op("DECQ CX")
	f.op("JNZ %s", one)
	f.at(next)
	f.op("ADDQ $4, SI")
	f.op("ADDQ $4, DX")
	f.op("ADDQ $4, BX")
	f.op("DECQ R8")
	f.op("JNZ %s", lane)
	f.ret()
}
