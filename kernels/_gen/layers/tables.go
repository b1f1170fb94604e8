package main

import "fmt"

// tables writes the searches for groups whose integers stand for values of a table, and those that improve integers one
// by one.
func tables(f *file) {
	f.tableSearch()
	f.tableCodes()
	f.descent()
}

// Places in a codebook: from which number on each next code is the nearest, the values, and vectors of what the search
// in eight lanes takes.
const (
	bookMiddles = 0
	bookValues  = 64
	bookSeventh = 128
	bookThird   = 160
	bookLater   = 192 // the eleventh
	bookEight   = 224
	bookFour    = 256
	bookTwo     = 288
	bookOne     = 320
)

// book loads what the search in sixteen lanes takes, from BX.
func (f *file) book() {
	if !f.wide() {
		return
	}
	f.op("VMOVUPS %d(BX), Z16", bookMiddles)
	f.op("VMOVUPS %d(BX), Z17", bookValues)
	f.op("VBROADCASTSS %d(BX), Z18", bookSeventh)
	for i, at := range []int{bookEight, bookFour, bookTwo, bookOne} {
		f.op("VBROADCASTSS %d(BX), Z%d", at, 19+i)
	}
	f.op("VPADDD Z22, Z21, Z23") // three
}

// code leaves the code of 9 in 10, by halving, and overwrites 11 to 13, of which 13 is a mask of the upper half in eight
// lanes.
func (f *file) code() {
	const notLess = 5
	if f.wide() {
		f.op("VCMPPS $%d, Z18, Z9, K1", notLess)
		f.op("VMOVDQA32.Z Z19, K1, Z10")
		for i, below := range []string{"Z23", "Z22", ""} { // the step less one
			index := "Z10"
			if below != "" {
				f.op("VPADDD %s, Z10, Z11", below)
				index = "Z11"
			}
			f.op("VPERMPS Z16, %s, Z12", index)
			f.op("VCMPPS $%d, Z12, Z9, K1", notLess)
			f.op("VPADDD Z%d, Z10, K1, Z10", 20+i)
		}
		return
	}

	f.op("VCMPPS $%d, %d(BX), Y9, Y13", notLess, bookSeventh)
	f.op("VMOVUPS %d(BX), Y11", bookThird)
	f.op("VBLENDVPS Y13, %d(BX), Y11, Y11", bookLater)
	f.op("VCMPPS $%d, Y11, Y9, Y11", notLess)
	f.op("VANDPS %d(BX), Y13, Y10", bookEight)
	f.op("VANDPS %d(BX), Y11, Y11", bookFour)
	f.op("VPADDD Y11, Y10, Y10")
	for _, step := range []int{bookTwo, bookOne} {
		index := 10
		if step == bookTwo {
			f.op("VPADDD %d(BX), Y10, Y11", bookOne)
			index = 11
		}
		f.pick(bookMiddles, index)
		f.op("VCMPPS $%d, Y12, Y9, Y11", notLess)
		f.op("VANDPS %d(BX), Y11, Y11", step)
		f.op("VPADDD Y11, Y10, Y10")
	}
}

// pick leaves in 12 the entries of a table of sixteen that the indices name, in eight lanes. It overwrites 11.
func (f *file) pick(table, index int) {
	f.op("VPERMPS %d(BX), Y%d, Y12", table, index)
	f.op("VPERMPS %d(BX), Y%d, Y11", table+32, index)
	f.op("VBLENDVPS Y13, Y11, Y12, Y12")
}

// value leaves the value of the code of 9 in 12.
func (f *file) value() {
	f.code()
	if f.wide() {
		f.op("VPERMPS Z17, Z10, Z12")
		return
	}
	f.pick(bookValues, 10)
}

func (f *file) tableSearch() {
	f.fn("tableLanes", "tableSearch for every column of b", "", param{"b", "*batch"}, param{"factors", floats},
		param{"book", "*codebook"})
	f.load("DI", "b")
	f.load("BX", "book")
	f.op("MOVQ $32, CX")
	f.book()

	f.zero(0)
	f.zero(1)
	f.immediate(1<<31-1, 2)
	f.rows(0, func() {
		f.op("VMOVUPS (SI), {9}")
		f.and(2, 9, 10)
		f.compare(greater, 10, 1, 0)
		f.where(0, 10, 1)
		f.where(0, 9, 0)
	})
	f.put2(1, state(stateMost))

	// The first try brings the extreme element to the lowest value.
	f.immediate(1<<31, 9)
	f.op("VXORPS {9}, {0}, {9}")
	f.op("VBROADCASTSS %d(BX), {10}", bookValues)
	f.op("VDIVPS {10}, {9}, {9}")
	f.immediate(0x3f800000, 10)
	f.op("VDIVPS {9}, {10}, {1}")
	f.tableSums()
	f.zero(2)
	f.zero(9)
	f.compare(greater, 8, 9, 0)
	f.op("VDIVPS {8}, {7}, {10}")
	f.where(0, 10, 2)
	f.op("VMULPS {7}, {2}, {3}")

	f.load("R9", "factors_base")
	f.op("MOVQ %s, R10", f.arg("factors_len"))
	next := f.label("factor")
	f.at(next)
	f.op("VBROADCASTSS (R9), {9}")
	f.op("VDIVPS {0}, {9}, {1}")
	f.tableSums()
	f.zero(9)
	f.compare(greater, 8, 9, 0)
	f.op("VMULPS {7}, {7}, {9}")
	f.op("VMULPS {8}, {3}, {10}")
	f.compare(greater, 9, 10, 1)
	f.both(0, 1)
	f.op("VDIVPS {8}, {7}, {9}")
	f.op("VMULPS {7}, {9}, {10}")
	f.where(0, 9, 2)
	f.where(0, 10, 3)
	f.op("ADDQ $4, R9")
	f.op("DECQ R10")
	f.op("JNZ %s", next)

	f.get2(state(stateMost), 9)
	f.immediate(0x26901d7d, 10) // 1e-15
	f.compare(less, 9, 10, 0)
	f.zero(10)
	f.where(0, 10, 2)
	f.put2(2, state(stateScale))
	f.ret()
}

// tableSums leaves Σwvx in 7 and Σwv² in 8 for the inverse scale in 1.
func (f *file) tableSums() {
	f.zero(7)
	f.zero(8)
	f.rows(0, func() {
		f.op("VMULPS (SI), {1}, {9}")
		f.value()
		f.op("VMULPS %d(SI), {12}, {9}", batchW)
		f.op("VMULPS {9}, {12}, {12}")
		f.op("VADDPS {12}, {8}, {8}")
		f.op("VMULPS (SI), {9}, {9}")
		f.op("VADDPS {9}, {7}, {7}")
	})
}

func (f *file) tableCodes() {
	f.fn("codes", "q[i] = the code of the value nearest to x[i]·inverse[i/32]", "", param{"q", "[]byte"},
		param{"x", floats}, param{"inverse", floats}, param{"book", "*codebook"})
	f.load("BX", "book")
	f.book()
	f.eachGroup([]string{"inverse"}, func() {}, func() {
		f.op("VMULPS {0}, {9}, {9}")
		f.code()
		f.op("VMOVAPS {10}, {9}")
	})
}

// descent writes the search that improves integers one by one, each given the others.
func (f *file) descent() {
	f.fn("descentLanes", "descent for every column of b, whose weights are squares", "", param{"b", "*batch"},
		param{"n", "int"}, param{"half", "int"}, param{"rounds", "int"})
	f.load("DI", "b")
	f.op("MOVQ %s, CX", f.arg("n"))
	f.zero(0)
	f.zero(1)
	f.immediate(1<<31-1, 2)
	f.rows(0, func() {
		f.op("VMOVUPS (SI), {9}")
		f.and(2, 9, 10)
		f.compare(greater, 10, 1, 0)
		f.where(0, 10, 1)
		f.where(0, 9, 0)
	})
	f.put2(1, state(stateMost))

	f.roundingConstants()
	f.spreadInt("half", 6)
	f.zero(7)
	f.op("VPSUBD {6}, {7}, {5}")
	f.immediate(1, 9)
	f.op("VPSUBD {9}, {6}, {6}")

	// The first integers bring the extreme element to -half.
	f.op("VCVTDQ2PS {5}, {9}")
	f.op("VDIVPS {0}, {9}, {8}")
	f.zero(0)
	f.zero(1)
	f.rows(0, func() {
		f.op("VMOVUPS (SI), {9}")
		f.op("VMULPS {9}, {8}, {10}")
		f.nearest(10, 5, 6)
		f.op("VCVTDQ2PS {10}, {10}")
		f.op("VMOVUPS {10}, %d(SI)", batchL)
		f.op("VMOVUPS %d(SI), {11}", batchW)
		f.op("VMULPS {11}, {9}, {9}")
		f.op("VMULPS {10}, {9}, {9}")
		f.op("VADDPS {9}, {0}, {0}")
		f.op("VMULPS {10}, {11}, {11}")
		f.op("VMULPS {10}, {11}, {11}")
		f.op("VADDPS {11}, {1}, {1}")
	})

	f.op("MOVQ %s, R10", f.arg("rounds"))
	round := f.label("round")
	done := f.label("done")
	f.at(round)
	f.changed("KXORW K3, K3, K3", "VXORPS Y8, Y8, Y8")
	f.rows(0, f.descentStep)
	f.changed("KMOVW K3, AX", "VMOVMSKPS Y8, AX")
	f.op("TESTL AX, AX")
	f.op("JZ %s", done)
	f.op("DECQ R10")
	f.op("JNZ %s", round)

	f.at(done)
	f.compare(greater, 1, 7, 0)
	f.op("VDIVPS {1}, {0}, {9}")
	f.zero(10)
	f.where(0, 9, 10)
	f.get2(state(stateMost), 9)
	f.immediate(0x26901d7d, 11) // 1e-15
	f.compare(less, 9, 11, 0)
	f.where(0, 7, 10)
	f.put2(10, state(stateScale))
	f.ret()
}

// changed writes what is done with the mask of the lanes in which an integer has changed.
func (f *file) changed(wide, narrow string) {
	if f.wide() {
		f.op("%s", wide)
		return
	}
	f.op("%s", narrow)
}

// descentStep improves one integer, where Σwxl is in 0, Σwl² in 1 and 7 is zero.
func (f *file) descentStep() {
	f.op("VMOVUPS %d(SI), {9}", batchW)
	f.op("VMOVUPS %d(SI), {10}", batchL)
	f.op("VMULPS {10}, {9}, {12}")
	f.op("VMULPS {10}, {12}, {12}")
	f.op("VSUBPS {12}, {1}, {12}") // Σwl² of the others
	f.op("VMULPS (SI), {9}, {9}")
	f.op("VMULPS {10}, {9}, {11}")
	f.op("VSUBPS {11}, {0}, {11}") // Σwxl of the others
	f.compare(greater, 11, 7, 0)

	f.op("VMULPS (SI), {12}, {13}")
	f.op("VDIVPS {11}, {13}, {13}")
	f.nearest(13, 5, 6)
	f.op("VCVTDQ2PS {13}, {13}")
	f.compare(unequal, 13, 10, 1)
	f.both(0, 1)

	f.op("VMULPS {13}, {9}, {9}")
	f.op("VADDPS {9}, {11}, {11}")
	f.op("VMULPS %d(SI), {13}, {9}", batchW)
	f.op("VMULPS {13}, {9}, {9}")
	f.op("VADDPS {9}, {12}, {12}")
	f.compare(greater, 12, 7, 1)
	f.both(0, 1)

	f.op("VMULPS {11}, {11}, {9}")
	f.op("VMULPS {1}, {9}, {9}")
	f.op("VMULPS {0}, {0}, {10}")
	f.op("VMULPS {12}, {10}, {10}")
	f.compare(greater, 9, 10, 1)
	f.both(0, 1)

	f.where(0, 11, 0)
	f.where(0, 12, 1)
	f.op("VMOVUPS %d(SI), {9}", batchL)
	f.where(0, 13, 9)
	f.op("VMOVUPS {9}, %d(SI)", batchL)
	f.changed("KORW K1, K3, K3", fmt.Sprintf("VORPS %s, Y8, Y8", f.maskName(0)))
}
