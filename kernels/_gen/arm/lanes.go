package main

// laneTile is the product of attention: for r < rows and 24 lanes, dst[r, lane] = dst[r, lane]·carry[lane] +
// Σ_p<k a[r·row + p·step]·b[p, lane], without dst on the right if carry is nil. Four rows are computed at a time, 24 sums
// in registers. Elements of a multiply from where they lie in a register: four of p of each row where step is 1 (keys),
// four rows of each p where row is 1 (values); what is left, and other strides, takes elements one by one. Sums are in the
// order of p, as AVX2's are.
//
// R0 a, R1 what is left of k, R3 b, R4 a of these rows, R5 dst, R8 row, R10 and R9 twice and three times that, R12 step,
// R14 and R15 the same of it, R13 rows.
func laneTile(l *lowering) {
	l.say("MOVD dst_base+0(FP), R5")
	l.say("MOVD a_base+24(FP), R4")
	l.say("MOVD rows+96(FP), R13")
	l.say("MOVD row+112(FP), R8")
	l.say("LSL $2, R8, R8")
	l.say("ADD R8, R8, R10")
	l.say("ADD R8, R10, R9")
	l.say("MOVD step+120(FP), R12")
	l.say("LSL $2, R12, R12")
	l.say("ADD R12, R12, R14")
	l.say("ADD R12, R14, R15")

	l.label("fours")
	l.say("CMP $4, R13")
	l.branch("LT", "ones")
	laneRows(l, 4)
	l.branch("", "fours")
	l.label("ones")
	l.code = append(l.code, ins{text: "CBZ R13, end", jump: "end"})
	laneRows(l, 1)
	l.branch("", "ones")
	l.label("end")
	l.ret()
}

// laneVectors is the number of registers of 24 lanes.
const laneVectors = 6

// laneRows is laneTile for four rows or one.
func laneRows(l *lowering, rows int) {
	name := func(s string) string { return s + string(rune('0'+rows)) }
	acc := l.some(laneVectors * rows)
	l.say("MOVD R4, R0")
	l.say("MOVD b_base+48(FP), R3")
	l.say("MOVD k+104(FP), R1")
	laneCarry(l, acc, name)
	if rows == 4 {
		laneFours(l, acc)
	}
	l.code = append(l.code, ins{text: "CBZ R1, " + name("done"), jump: name("done")})

	l.label(name("one"))
	b := l.some(laneVectors)
	for i := 0; i < laneVectors; i += 2 {
		l.mem("ldp.q", 3, 16*i, b[i], b[i+1])
	}
	for r := range rows {
		at := []int{0, 16, 16, 16}[r]
		if r > 0 {
			l.say("ADD R%d, R0, R16", []int{8, 10, 9}[r-1])
		}
		x := l.fresh()
		l.code = append(l.code, ins{op: "ld1r.4s", v: []int{x}, x: at})
		for i, v := range b {
			l.do("fmla.4s", 0, acc[laneVectors*r+i], x, v)
		}
	}
	l.say("ADD R12, R0, R0")
	l.say("ADD $96, R3, R3")
	l.say("SUBS $1, R1, R1")
	l.branch("NE", name("one"))

	l.label(name("done"))
	for i := 0; i < len(acc); i += 2 {
		l.mem("stp.q", 5, 16*i, acc[i], acc[i+1])
	}
	l.say("ADD $%d, R5, R5", 96*rows)
	if rows == 4 {
		l.say("ADD R8<<2, R4, R4")
	} else {
		l.say("ADD R8, R4, R4")
	}
	l.say("SUB $%d, R13, R13", rows)
}

// laneCarry begins sums: with what dst has, scaled, or with 0.
func laneCarry(l *lowering, acc []int, name func(string) string) {
	l.say("MOVD carry_base+72(FP), R2")
	l.code = append(l.code, ins{text: "CBZ R2, " + name("fresh"), jump: name("fresh")})
	carry := l.some(laneVectors)
	for i := 0; i < laneVectors; i += 2 {
		l.mem("ldp.q", 2, 16*i, carry[i], carry[i+1])
	}
	for i := 0; i < len(acc); i += 2 {
		old := l.some(2)
		l.mem("ldp.q", 5, 16*i, old[0], old[1])
		l.do("fmul.4s", 0, acc[i], carry[i%laneVectors], old[0])
		l.do("fmul.4s", 0, acc[i+1], carry[i%laneVectors+1], old[1])
	}
	l.branch("", name("sums"))
	l.label(name("fresh"))
	for _, v := range acc {
		l.do("movi0", 0, v)
	}
	l.label(name("sums"))
}

// laneFours adds four p at a time to the sums of four rows; what is left of k is in R1 afterwards.
func laneFours(l *lowering, acc []int) {
	// further loads four elements of a so many steps of a register after R0.
	further := func(by ...int) []int {
		x := l.some(len(by))
		for i, m := range by {
			l.code = append(l.code, ins{op: "ldrx.q", v: []int{x[i]}, x: 0, m: m})
		}
		return x
	}
	next := func(loop string) {
		l.say("SUBS $4, R1, R1")
		l.branch("GE", loop)
	}

	l.say("SUBS $4, R1, R1")
	l.branch("LT", "left")
	l.say("CMP $4, R12")
	l.branch("EQ", "along")
	l.say("CMP $4, R8")
	l.branch("NE", "left")

	l.label("across")
	x := l.some(1)
	l.mem("ldr.q", 0, 0, x[0])
	x = append(x, further(12, 14, 15)...)
	b := &stream{l: l, reg: 3, left: 4 * laneVectors}
	for p := range 4 {
		laneStep(l, acc, b, func(r int) (element, v int) { return r, x[p] })
	}
	l.say("ADD R12<<2, R0, R0")
	next("across")
	l.branch("", "left")

	l.label("along")
	rest, first := further(8, 10, 9), l.fresh()
	l.mem("ld1p.q", 0, 16, first)
	x = append([]int{first}, rest...)
	b = &stream{l: l, reg: 3, left: 4 * laneVectors}
	for p := range 4 {
		laneStep(l, acc, b, func(r int) (element, v int) { return p, x[r] })
	}
	next("along")
	l.label("left")
	l.say("ADD $4, R1, R1")
}

// laneStep multiplies the next lanes of b by an element of a register for each of four rows.
func laneStep(l *lowering, acc []int, b *stream, of func(row int) (element, v int)) {
	for i := range laneVectors {
		lanes := b.next()
		for r := range 4 {
			element, v := of(r)
			l.do("fmlae.4s", element, acc[laneVectors*r+i], lanes, v)
		}
	}
}
