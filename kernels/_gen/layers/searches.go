package main

// searches writes the loops that look for the scales of quantised blocks. Every lane is a group of elements with a scale
// of its own: they lie in columns of a batch, so that the sums of each run over its elements in order, as the plain loops
// do.
func searches(f *file) {
	f.offsetSearch()
	f.symmetricSearch()
	f.laneWeights()
}

// Places in a batch, in bytes: the elements, their weights, what is computed of each, and vectors.
const (
	batchW     = 2048
	batchL     = 4096
	batchState = 6144
)

// state is the place of a vector of a batch.
func state(i int) int { return batchState + 64*i }

// The vectors.
const (
	stateMost = iota
	stateSumW
	stateSumX
	stateScale
	stateLow
	stateError
	stateInverse
	stateFrom
	stateLeast
)

// row is the distance of the rows of a batch, in bytes.
func (f *file) row() int { return 4 * f.lanes }

func (f *file) get2(at, v int) { f.op("VMOVUPS %d(DI), {%d}", at, v) }
func (f *file) put2(v, at int) { f.op("VMOVUPS {%d}, %d(DI)", v, at) }

// The masks of lanes: registers of masks, or the last vectors.
const (
	less    = 17 // predicates, ordered and quiet
	greater = 30
	equal   = 0
	unequal = 4 // also of a NaN
)

func (f *file) maskName(m int) string {
	if f.wide() {
		return [...]string{"K1", "K2"}[m]
	}
	return [...]string{"Y15", "Y14"}[m]
}

// compare makes mask m of a ? b.
func (f *file) compare(predicate, a, b, m int) {
	f.op("VCMPPS $%d, {%d}, {%d}, %s", predicate, b, a, f.maskName(m))
}

// both makes mask m the lanes that are in mask n too.
func (f *file) both(m, n int) {
	if f.wide() {
		f.op("KANDW %s, %s, %s", f.maskName(n), f.maskName(m), f.maskName(m))
		return
	}
	f.op("VANDPS %s, %s, %s", f.maskName(n), f.maskName(m), f.maskName(m))
}

// where copies the lanes of a mask.
func (f *file) where(m, from, to int) {
	if f.wide() {
		f.op("VMOVAPS {%d}, %s, {%d}", from, f.maskName(m), to)
		return
	}
	f.op("VBLENDVPS %s, {%d}, {%d}, {%d}", f.maskName(m), from, to, to)
}

// whereKept copies the lanes of a mask to a vector of the batch. It overwrites 9.
func (f *file) whereKept(m, from, at int) {
	f.get2(at, 9)
	f.where(m, from, 9)
	f.put2(9, at)
}

// rows writes a loop over the rows of a batch, with SI at the row; skip leaves out so many.
func (f *file) rows(skip int, body func()) {
	f.op("LEAQ %d(DI), SI", skip*f.row())
	f.op("MOVQ CX, R8")
	if skip > 0 {
		f.op("SUBQ $%d, R8", skip)
	}
	next := f.label("row")
	f.at(next)
	body()
	f.op("ADDQ $%d, SI", f.row())
	f.op("DECQ R8")
	f.op("JNZ %s", next)
}

// The constants of rounding: 1.5·2²³, whose sum with a number has the nearest integer in its lower bits, and what takes
// the others off.
const (
	regMagic = 2 + iota
	regBits
	regBias
)

func (f *file) roundingConstants() {
	f.immediate(0x4b400000, regMagic)
	f.immediate(0x7fffff, regBits)
	f.immediate(0x400000, regBias)
}

// nearest rounds a vector to integers from those of register low up to those of high.
func (f *file) nearest(v, low, high int) {
	f.op("VADDPS {%d}, {%d}, {%d}", regMagic, v, v)
	f.and(regBits, v, v)
	f.op("VPSUBD {%d}, {%d}, {%d}", regBias, v, v)
	f.op("VPMAXSD {%d}, {%d}, {%d}", low, v, v)
	f.op("VPMINSD {%d}, {%d}, {%d}", high, v, v)
}

// offsetSearch writes the search for a scale and a minimum.
func (f *file) offsetSearch() {
	f.fn("offsetLanes", "offsetSearch.group for every column of b", "", param{"b", "*batch"}, param{"n", "int"},
		param{"factors", floats}, param{"top", "int"}, param{"absolute", "int"})
	f.load("DI", "b")
	f.op("MOVQ %s, CX", f.arg("n"))
	f.offsetBounds()

	f.roundingConstants()
	f.op("MOVQ %s, AX", f.arg("top"))
	f.raw("\tVMOVD AX, X5")
	f.op("VPBROADCASTD X5, {5}")
	f.zero(7)

	// The first try maps the whole range.
	f.op("VSUBPS {0}, {1}, {9}")
	f.op("VCVTDQ2PS {5}, {10}")
	f.op("VDIVPS {9}, {10}, {1}")
	f.immediate(0x3f800000, 9)
	f.op("VDIVPS {1}, {9}, {12}")
	f.op("VMOVAPS {0}, {13}")
	f.put2(1, state(stateInverse))
	f.put2(0, state(stateFrom))
	f.put2(12, state(stateScale))
	f.put2(0, state(stateLow))
	f.rows(0, func() {
		f.offsetLevel()
		f.op("VMOVUPS {9}, %d(SI)", batchL)
	})
	f.offsetError()
	f.put2(6, state(stateError))

	f.load("R9", "factors_base")
	f.op("MOVQ %s, R10", f.arg("factors_len"))
	next := f.label("factor")
	f.at(next)
	f.offsetTry()
	f.op("ADDQ $4, R9")
	f.op("DECQ R10")
	f.op("JNZ %s", next)

	// Where all elements are the same there is no scale.
	f.get2(state(stateMost), 0)
	f.get2(state(stateLeast), 1)
	f.zero(10)
	f.compare(equal, 0, 1, 0)
	f.whereKept(0, 10, state(stateScale))
	f.whereKept(0, 10, state(stateInverse))
	f.whereKept(0, 10, state(stateFrom))
	f.whereKept(0, 1, state(stateLow))
	f.ret()
}

// offsetBounds leaves the least element, at most 0, in 0 and the largest in 1, and stores both and the sums.
func (f *file) offsetBounds() {
	f.get2(0, 0)
	f.op("VMOVAPS {0}, {1}")
	f.get2(batchW, 2)
	f.op("VMULPS {0}, {2}, {3}")
	f.rows(1, func() {
		f.op("VMOVUPS (SI), {9}")
		f.op("VMOVUPS %d(SI), {10}", batchW)
		f.op("VMINPS {0}, {9}, {0}") // of two zeros the one before stays
		f.op("VMAXPS {1}, {9}, {1}")
		f.op("VADDPS {10}, {2}, {2}")
		f.op("VMULPS {9}, {10}, {10}")
		f.op("VADDPS {10}, {3}, {3}")
	})
	f.zero(9)
	f.op("VMINPS {0}, {9}, {0}")
	f.put2(0, state(stateLeast))
	f.put2(1, state(stateMost))
	f.put2(2, state(stateSumW))
	f.put2(3, state(stateSumX))
}

// offsetLevel leaves the integer of an element in 9, as a float; 7 is zero.
func (f *file) offsetLevel() {
	f.op("VMOVUPS (SI), {9}")
	f.op("VSUBPS {0}, {9}, {9}")
	f.op("VMULPS {1}, {9}, {9}")
	f.nearest(9, 7, 5)
	f.op("VCVTDQ2PS {9}, {9}")
}

// offsetError sums up what scale 12 and minimum 13 leave, in 6.
func (f *file) offsetError() {
	absolute := f.label("absolute")
	done := f.label("summed")
	one := func(apply func()) {
		f.rows(0, func() {
			f.op("VMULPS %d(SI), {12}, {9}", batchL)
			f.op("VADDPS {13}, {9}, {9}")
			f.op("VSUBPS (SI), {9}, {9}")
			apply()
			f.op("VMULPS %d(SI), {9}, {9}", batchW)
			f.op("VADDPS {9}, {6}, {6}")
		})
	}

	f.zero(6)
	f.op("CMPQ %s, $0", f.arg("absolute"))
	f.op("JNE %s", absolute)
	one(func() { f.op("VMULPS {9}, {9}, {9}") })
	f.op("JMP %s", done)
	f.at(absolute)
	f.immediate(1<<31-1, 10)
	one(func() { f.and(10, 9, 9) })
	f.at(done)
}

// offsetTry tries the factor at R9.
func (f *file) offsetTry() {
	f.op("VBROADCASTSS (R9), {9}")
	f.get2(state(stateLow), 0)
	f.get2(state(stateMost), 10)
	f.op("VSUBPS {0}, {10}, {10}")
	f.op("VDIVPS {10}, {9}, {1}")
	f.zero(6)
	f.zero(7)
	f.zero(8)
	f.zero(11)
	f.rows(0, func() {
		f.offsetLevel()
		f.op("VMOVUPS {9}, %d(SI)", batchL)
		f.op("VMULPS %d(SI), {9}, {10}", batchW)
		f.op("VADDPS {10}, {6}, {6}")
		f.op("VMULPS {10}, {9}, {9}")
		f.op("VADDPS {9}, {11}, {11}")
		f.op("VMULPS (SI), {10}, {10}")
		f.op("VADDPS {10}, {8}, {8}")
	})

	// Weighted least squares of Σwl in 6, Σwl² in 11 and Σwlx in 8: scale 12 and minimum 13.
	f.get2(state(stateSumW), 9)
	f.get2(state(stateSumX), 10)
	f.op("VMULPS {8}, {9}, {12}")
	f.op("VMULPS {6}, {10}, {13}")
	f.op("VSUBPS {13}, {12}, {12}")
	f.op("VMULPS {11}, {9}, {9}")
	f.op("VMULPS {6}, {6}, {13}")
	f.op("VSUBPS {13}, {9}, {9}")
	f.compare(greater, 9, 7, 0)
	f.op("VDIVPS {9}, {12}, {12}")
	f.op("VMULPS {11}, {10}, {10}")
	f.op("VMULPS {8}, {6}, {13}")
	f.op("VSUBPS {13}, {10}, {10}")
	f.op("VDIVPS {9}, {10}, {13}")
	f.op("VDIVPS {11}, {8}, {9}")
	f.compare(greater, 13, 7, 1)
	f.where(1, 9, 12)
	f.where(1, 7, 13)
	f.offsetError()

	f.get2(state(stateError), 9)
	f.compare(less, 6, 9, 1)
	f.both(1, 0)
	f.whereKept(1, 6, state(stateError))
	f.whereKept(1, 12, state(stateScale))
	f.whereKept(1, 13, state(stateLow))
	f.whereKept(1, 1, state(stateInverse))
	f.whereKept(1, 0, state(stateFrom))
}

// symmetricSearch writes the search for a scale alone.
func (f *file) symmetricSearch() {
	f.fn("symmetricLanes", "symmetricSearch.group for every column of b", "", param{"b", "*batch"}, param{"n", "int"},
		param{"factors", floats}, param{"half", "int"})
	f.load("DI", "b")
	f.op("MOVQ %s, CX", f.arg("n"))

	// The first element of the largest magnitude, in 0, and the products of weights and elements.
	f.zero(0)
	f.zero(1)
	f.zero(3)
	f.immediate(1<<31-1, 2)
	f.rows(0, func() {
		f.op("VMOVUPS (SI), {9}")
		f.and(2, 9, 10)
		f.compare(greater, 10, 1, 0)
		f.where(0, 10, 1)
		f.where(0, 9, 0)
		f.op("VMOVUPS %d(SI), {10}", batchW)
		f.op("VADDPS {10}, {3}, {3}")
		f.op("VMULPS {10}, {9}, {9}")
		f.op("VMOVUPS {9}, %d(SI)", batchL)
	})
	f.put2(1, state(stateMost))
	f.put2(3, state(stateSumW))

	f.roundingConstants()
	f.op("MOVQ %s, AX", f.arg("half"))
	f.raw("\tVMOVD AX, X6")
	f.op("VPBROADCASTD X6, {6}")
	f.zero(5)
	f.op("VPSUBD {6}, {5}, {5}")
	f.immediate(1, 9)
	f.op("VPSUBD {9}, {6}, {6}")

	f.load("R9", "factors_base")
	f.op("MOVQ %s, R10", f.arg("factors_len"))
	f.symmetricSums()
	f.zero(11)
	f.zero(9)
	f.compare(unequal, 8, 9, 0)
	f.op("VDIVPS {8}, {7}, {10}")
	f.where(0, 10, 11)
	f.op("VMULPS {7}, {11}, {12}")
	f.op("VMOVAPS {1}, {13}")

	next := f.label("factor")
	done := f.label("done")
	f.at(next)
	f.op("DECQ R10")
	f.op("JZ %s", done)
	f.op("ADDQ $4, R9")
	f.symmetricSums()
	f.zero(9)
	f.compare(greater, 8, 9, 0)
	f.op("VMULPS {7}, {7}, {9}")
	f.op("VMULPS {8}, {12}, {10}")
	f.compare(greater, 9, 10, 1)
	f.both(0, 1)
	f.op("VDIVPS {8}, {7}, {9}")
	f.op("VMULPS {7}, {9}, {10}")
	f.where(0, 9, 11)
	f.where(0, 10, 12)
	f.where(0, 1, 13)
	f.op("JMP %s", next)

	f.at(done)
	f.get2(state(stateMost), 9)
	f.immediate(0x26901d7d, 10) // 1e-15
	f.compare(less, 9, 10, 0)
	f.zero(10)
	f.where(0, 10, 11)
	f.where(0, 10, 13)
	f.put2(11, state(stateScale))
	f.put2(13, state(stateInverse))
	f.ret()
}

// symmetricSums leaves Σwxl in 7 and Σwl² in 8 for the inverse scale in 1, which is the factor at R9 over 0.
func (f *file) symmetricSums() {
	f.op("VBROADCASTSS (R9), {9}")
	f.op("VDIVPS {0}, {9}, {1}")
	f.zero(7)
	f.zero(8)
	f.rows(0, func() {
		f.op("VMULPS (SI), {1}, {9}")
		f.nearest(9, 5, 6)
		f.op("VCVTDQ2PS {9}, {9}")
		f.op("VMULPS %d(SI), {9}, {10}", batchL)
		f.op("VADDPS {10}, {7}, {7}")
		f.op("VMULPS %d(SI), {9}, {10}", batchW)
		f.op("VMULPS {10}, {9}, {9}")
		f.op("VADDPS {9}, {8}, {8}")
	})
}

// laneWeights writes the weights that follow from the elements alone.
func (f *file) laneWeights() {
	f.fn("spreadLanes", "for every column of b: w[i] = √(Σx²/n) + |x[i]|", "", param{"b", "*batch"}, param{"n", "int"})
	f.load("DI", "b")
	f.op("MOVQ %s, CX", f.arg("n"))
	f.zero(0)
	f.rows(0, func() {
		f.op("VMOVUPS (SI), {9}")
		f.op("VMULPS {9}, {9}, {9}")
		f.op("VADDPS {9}, {0}, {0}")
	})
	f.raw("\tVMOVD CX, X1")
	f.op("VPBROADCASTD X1, {1}")
	f.op("VCVTDQ2PS {1}, {1}")
	f.op("VDIVPS {1}, {0}, {0}")
	f.op("VSQRTPS {0}, {0}")
	f.immediate(1<<31-1, 2)
	f.rows(0, func() {
		f.op("VMOVUPS (SI), {9}")
		f.and(2, 9, 9)
		f.op("VADDPS {9}, {0}, {9}")
		f.op("VMOVUPS {9}, %d(SI)", batchW)
	})
	f.ret()

	f.fn("magnitudeLanes", "w[i] = |x[i]| for every column of b", "", param{"b", "*batch"}, param{"n", "int"})
	f.load("DI", "b")
	f.op("MOVQ %s, CX", f.arg("n"))
	f.immediate(1<<31-1, 2)
	f.rows(0, func() {
		f.op("VMOVUPS (SI), {9}")
		f.and(2, 9, 9)
		f.op("VMOVUPS {9}, %d(SI)", batchW)
	})
	f.ret()

	f.fn("squareLanes", "w[i] = x[i]² for every column of b", "", param{"b", "*batch"}, param{"n", "int"})
	f.load("DI", "b")
	f.op("MOVQ %s, CX", f.arg("n"))
	f.rows(0, func() {
		f.op("VMOVUPS (SI), {9}")
		f.op("VMULPS {9}, {9}, {9}")
		f.op("VMOVUPS {9}, %d(SI)", batchW)
	})
	f.ret()
}
