package cpu

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// selectLevels are the devices that selection is tested on: every instruction set of this processor, and several thread
// counts.
func selectLevels() map[string]*Device {
	out := map[string]*Device{}
	for _, off := range []string{"", "avx512", "avx2,neon"} {
		for _, threads := range []int{1, 2, 5} {
			d := New(Options{Threads: threads})
			d.isa = d.isa.without(off)
			d.selectOps(&d.ops)
			out[fmt.Sprintf("without %q, %d threads", off, threads)] = d
		}
	}

	return out
}

// canary fills the elements around a matrix, which no operation may touch.
const canary = 0x5a

// selectMat makes a strided matrix inside a buffer full of canaries.
func selectMat(d kernels.DType, rows, cols, gap int) kernels.Mat {
	const lead = 3
	b := kernels.NewHost(d, lead+rows*(cols+gap)+16)
	for i := range b.Bytes() {
		b.Bytes()[i] = canary
	}
	return kernels.Mat{Buf: b, Off: lead, Rows: rows, Cols: cols, Stride: cols + gap}
}

// scoreValue draws numbers that make selection hard: ties, zeros of both signs, subnormals, and both ends of the range.
func scoreValue(t *rapid.T, kind int) float32 {
	switch kind {
	case 0:
		return float32(rapid.IntRange(-3, 3).Draw(t, "tied")) / 2
	case 1:
		return rapid.SampledFrom([]float32{
			0, float32(math.Copysign(0, -1)), math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 1e-39, 3e38,
			-3e38, 65504, 6e-8, 1,
		}).Draw(t, "edge")
	case 2:
		return 0.25
	}

	return rapid.Float32Range(-4, 4).Draw(t, "value")
}

// fillScores fills x, given the kind of numbers.
func fillScores(t *rapid.T, x kernels.Mat, kind int) {
	seed := uint32(rapid.IntRange(0, 1<<20).Draw(t, "seed"))
	pool := make([]float32, 37)
	for i := range pool {
		pool[i] = scoreValue(t, kind)
	}

	for i := range x.Rows {
		for j := range x.Cols {
			seed = seed*1664525 + 1013904223
			v := pool[seed>>8%uint32(len(pool))]
			if kind == 3 {
				v *= float32(seed>>4) / (1 << 28)
			}
			putScore(x, i, j, v)
		}
	}
}

func putScore(x kernels.Mat, i, j int, v float32) {
	switch x.DType() {
	case kernels.F32:
		x.RowF32(i)[j] = v
	case kernels.BF16:
		x.RowU16(i)[j] = kernels.ToBF16(v)
	case kernels.F16:
		x.RowU16(i)[j] = kernels.ToF16(v)
	}
}

// sameMask fails unless both masks, and the canaries around them, are equal.
func sameMask(t *rapid.T, what string, got, want kernels.Mat) {
	t.Helper()
	for i, g := range got.Buf.Bytes() {
		if g != want.Buf.Bytes()[i] {
			r, c := (i-got.Off)/got.Stride, (i-got.Off)%got.Stride
			t.Fatalf("%s: row %d, column %d of %d: mask %d, want %d", what, r, c, got.Cols, g, want.Buf.Bytes()[i])
		}
	}
}

// drawScore draws a score over a strided matrix.
func drawScore(t *rapid.T) kernels.Score {
	d := rapid.SampledFrom([]kernels.DType{kernels.F32, kernels.BF16, kernels.F16}).Draw(t, "type")
	rows := rapid.IntRange(1, 5).Draw(t, "rows")
	cols := rapid.OneOf(rapid.IntRange(1, 70), rapid.SampledFrom([]int{172, 255, 256, 2047, 2049, 4100})).Draw(t,
		"cols")
	s := kernels.Score{
		X:   selectMat(d, rows, cols, rapid.IntRange(0, 9).Draw(t, "gap")),
		Raw: rapid.Bool().Draw(t, "raw"),
	}
	fillScores(t, s.X, rapid.IntRange(0, 4).Draw(t, "kind"))

	if rapid.Bool().Draw(t, "scaled") {
		s.Col = selectMat(kernels.F32, 1, cols, 0)
		fillScores(t, s.Col, rapid.SampledFrom([]int{0, 2, 3, 4}).Draw(t, "colkind"))
	}

	if rapid.IntRange(0, 4).Draw(t, "nan") == 0 {
		putScore(s.X, rows-1, cols/2, float32(math.NaN()))
		putScore(s.X, 0, cols/3, float32(math.Copysign(math.NaN(), -1)))
		putScore(s.X, 0, cols-1, float32(math.Inf(1)))
	}

	return s
}

func TestSelectAgainstRef(t *testing.T) {
	oracle := ref.New().Ops()
	levels := selectLevels()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScore(t)
		gap := rapid.IntRange(0, 3).Draw(t, "maskgap")
		mask := func() kernels.Mat { return selectMat(kernels.U8, s.X.Rows, s.X.Cols, gap) }

		var run func(o *kernels.Ops, m kernels.Mat)
		switch rapid.SampledFrom([]string{"rows", "all", "nm"}).Draw(t, "op") {
		case "rows":
			drop := rapid.OneOf(rapid.IntRange(0, s.X.Cols), rapid.Just(s.X.Cols/2)).Draw(t, "drop")
			run = func(o *kernels.Ops, m kernels.Mat) { o.SelectRows(m, s, drop) }
		case "all":
			drop := rapid.IntRange(-1, s.X.Len()-1).Draw(t, "rank")
			run = func(o *kernels.Ops, m kernels.Mat) { o.SelectAll(m, s, drop) }
		default:
			m := rapid.OneOf(rapid.IntRange(1, 16), rapid.SampledFrom([]int{4, 8, 16, 32, 64, 2100, math.MaxInt})).Draw(
				t, "m")
			n := rapid.IntRange(0, m).Draw(t, "n")
			run = func(o *kernels.Ops, k kernels.Mat) { o.SelectNM(k, s, n, m) }
		}

		want := mask()
		run(oracle, want)

		for name, d := range levels {
			got := mask()
			run(d.Ops(), got)
			sameMask(t, name, got, want)
		}
	})
}

// TestSelectWholeMatrixLarge covers the sampled threshold, its fallback when half of the matrix is one value, and an
// order of values that misleads the sample.
func TestSelectWholeMatrixLarge(t *testing.T) {
	const rows, cols = 300, 1031
	x := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
	for name, value := range map[string]func(i int) float32{
		"smooth":    func(i int) float32 { return float32(i*7919%(rows*cols)) - rows*cols/2 },
		"half zero": func(i int) float32 { return float32(max(0, i*7919%(rows*cols)-rows*cols*47/100)) },
		"spikes":    func(i int) float32 { return float32(math.Exp2(float64(i*7919%251 - 125))) },
		"constant":  func(int) float32 { return -3 },
	} {
		for i := range x.Buf.F32() {
			x.Buf.F32()[i] = value(i)
		}

		for _, drop := range []int{0, 1, 1000, rows * cols / 2, rows*cols - 1} {
			want := kernels.MatOf(kernels.NewHost(kernels.U8, rows*cols), rows, cols)
			ref.New().Ops().SelectAll(want, kernels.Score{X: x, Raw: true}, drop)

			for level, d := range selectLevels() {
				got := kernels.MatOf(kernels.NewHost(kernels.U8, rows*cols), rows, cols)
				d.Ops().SelectAll(got, kernels.Score{X: x, Raw: true}, drop)
				if string(got.Buf.Bytes()) != string(want.Buf.Bytes()) {
					t.Errorf("%s, drop %d, %s: mask differs from the reference", name, drop, level)
				}
			}
		}
	}
}

// TestNthAdversarial holds the selection of one rank to the sorted order on inputs made against sampled pivots.
func TestNthAdversarial(t *testing.T) {
	k := selectKernelsFor(detect(""))
	for _, n := range []int{1, 47, 48, 49, 64, 1000, 4096} {
		for name, key := range map[string]func(i int) int32{
			"ascending":  func(i int) int32 { return int32(i) },
			"descending": func(i int) int32 { return int32(-i) },
			"constant":   func(int) int32 { return 7 },
			"extremes":   func(i int) int32 { return []int32{math.MinInt32 + 1, math.MaxInt32}[i&1] },
			"few high":   func(i int) int32 { return int32(b2i(i%64 == 0)) * int32(i) },
			"powers":     func(i int) int32 { return 1 << (i % 31) },
		} {
			keys := make([]int32, n)
			for i := range keys {
				keys[i] = key(i)
			}

			for _, rank := range []int{0, n / 3, n / 2, n - 1} {
				got, below := k.nth(keys, rank, make([]int32, n, n+keyPad), make([]int32, n, n+keyPad))
				lower, equal := 0, 0
				for _, v := range keys {
					lower += b2i(v < got)
					equal += b2i(v == got)
				}

				if below != lower || rank < lower || rank >= lower+equal {
					t.Errorf("%s, n %d, rank %d: key %d with %d below (counted %d) and %d equal", name, n, rank, got,
						below, lower, equal)
				}
			}
		}
	}
}

// TestSelectPanics: counts outside the matrix are a caller's bug.
func TestSelectPanics(t *testing.T) {
	o := New(Options{}).Ops()
	mat := func(d kernels.DType, rows, cols int) kernels.Mat {
		return kernels.MatOf(kernels.NewHost(d, rows*cols), rows, cols)
	}

	m, s := mat(kernels.U8, 2, 4), kernels.Score{X: mat(kernels.F32, 2, 4)}
	for name, f := range map[string]func(){
		"too many columns": func() { o.SelectRows(m, s, 5) },
		"negative count":   func() { o.SelectRows(m, s, -1) },
		"rank":             func() { o.SelectAll(m, s, 8) },
		"n over m":         func() { o.SelectNM(m, s, 5, 4) },
		"m zero":           func() { o.SelectNM(m, s, 0, 0) },
		"shape":            func() { o.SelectRows(mat(kernels.U8, 4, 2), s, 1) },
		"mask type":        func() { o.SelectRows(mat(kernels.F32, 2, 4), s, 1) },
		"col shape":        func() { o.SelectRows(m, kernels.Score{X: s.X, Col: mat(kernels.F32, 1, 3)}, 1) },
		"score type":       func() { o.SelectRows(m, kernels.Score{X: mat(kernels.I32, 2, 4)}, 1) },
		"sum shape":        func() { o.ColSumSq(mat(kernels.F64, 1, 3), s.X) },
		"apply shape":      func() { o.ApplyMask(s.X, mat(kernels.U8, 1, 4)) },
	} {
		func() {
			defer func() {
				if _, ok := recover().(string); !ok {
					t.Errorf("%s: no panic with a constant string", name)
				}
			}()
			f()
		}()
	}
}

// TestSelectEmpty: matrices without rows or columns are no error.
func TestSelectEmpty(t *testing.T) {
	for _, shape := range [][2]int{{0, 0}, {0, 5}, {5, 0}} {
		mat := func(d kernels.DType) kernels.Mat { return kernels.MatOf(kernels.NewHost(d, 0), shape[0], shape[1]) }
		m := mat(kernels.U8)
		x := mat(kernels.F32)

		o := New(Options{}).Ops()
		o.SelectRows(m, kernels.Score{X: x}, 0)
		o.SelectAll(m, kernels.Score{X: x}, -1)
		o.SelectNM(m, kernels.Score{X: x}, 2, 4)
		o.ApplyMask(x, m)
		o.ColSumSq(kernels.MatOf(kernels.NewHost(kernels.F64, shape[1]), 1, shape[1]), x)
		if at, n := o.NonFinite(x), o.CountZero(x); at != -1 || n != 0 {
			t.Errorf("%v: NonFinite %d, CountZero %d", shape, at, n)
		}
	}
}

// TestSelectGolden is the Wanda and magnitude part of the worked example in the project's pruning specification (§4.8).
func TestSelectGolden(t *testing.T) {
	w := []float32{.5, -1, .25, 2, -.125, .75, -1.5, .1, 1, .2, -.3, .4, -.5, .6, -.7, .8}
	sum := []float64{8.315847, 12.552824, 17.226034, 25.273247, 32.535359, 38.657843, 51.056361, 62.18803}

	x := kernels.MatOf(kernels.NewHost(kernels.F32, 128), 16, 8)
	for t := range 16 {
		for j := range 8 {
			x.RowF32(t)[j] = float32(math.Sin(float64(1+8*t+j)) * (1 + 0.25*float64(j)))
		}
	}

	col := kernels.MatOf(kernels.NewHost(kernels.F32, 8), 1, 8)
	for name, d := range selectLevels() {
		o := d.Ops()
		acc := kernels.NewHost(kernels.F64, 8)
		o.ColSumSq(kernels.MatOf(acc, 1, 8), x)

		for j, v := range acc.F64() {
			if math.Abs(v-sum[j]) > 1e-5*sum[j] { // x was rounded to F32
				t.Errorf("%s: s[%d] = %v, want %v", name, j, v, sum[j])
			}
			col.RowF32(0)[j] = float32(math.Sqrt(v))
		}

		plain := kernels.Score{X: kernels.MatOf(kernels.WrapF32(w), 2, 8)}
		wanda := kernels.Score{X: plain.X, Col: col}
		for want, f := range map[string]func(m kernels.Mat){
			"01010110 10000111": func(m kernels.Mat) { o.SelectRows(m, wanda, 4) },
			"01010110 10010011": func(m kernels.Mat) { o.SelectNM(m, wanda, 2, 4) },
			"01010110 10000011": func(m kernels.Mat) { o.SelectAll(m, plain, 8) },
		} {
			m := kernels.MatOf(kernels.NewHost(kernels.U8, 16), 2, 8)
			f(m)

			got := ""
			for i, v := range m.Buf.U8() {
				if i == 8 {
					got += " "
				}
				got += fmt.Sprint(v)
			}

			if got != want {
				t.Errorf("%s: mask %s, want %s", name, got, want)
			}
		}
	}
}

func TestMaskAndCountAgainstRef(t *testing.T) {
	oracle := ref.New().Ops()
	levels := selectLevels()
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.SampledFrom([]kernels.DType{kernels.F32, kernels.BF16, kernels.F16}).Draw(t, "type")
		rows := rapid.IntRange(1, 4).Draw(t, "rows")
		cols := rapid.OneOf(rapid.IntRange(1, 140), rapid.SampledFrom([]int{1025, 70001})).Draw(t, "cols")
		gap := rapid.IntRange(0, 2).Draw(t, "gap")
		x := selectMat(d, rows, cols, gap)
		fillScores(t, x, rapid.IntRange(0, 4).Draw(t, "kind"))

		mask := selectMat(kernels.U8, rows, cols, rapid.IntRange(0, 2).Draw(t, "maskgap"))
		for i := range rows {
			for j := range mask.RowU8(i) {
				mask.RowU8(i)[j] = uint8((i*31 + j*j) % 5)
			}
		}

		if n := rapid.IntRange(0, 2).Draw(t, "bad"); n > 0 {
			for range n {
				i, j := rapid.IntRange(0, rows-1).Draw(t, "i"), rapid.IntRange(0, cols-1).Draw(t, "j")
				putScore(x, i, j,
					float32(rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1)}).Draw(t, "bad value")))
			}
		}

		want := clone(x)
		oracle.ApplyMask(want, mask)

		for name, dev := range levels {
			o := dev.Ops()
			if got, want := o.NonFinite(x), oracle.NonFinite(x); got != want {
				t.Fatalf("%s: NonFinite %d, want %d", name, got, want)
			}
			if got, want := o.CountZero(x), oracle.CountZero(x); got != want {
				t.Fatalf("%s: CountZero %d, want %d", name, got, want)
			}
			if got, want := o.CountZero(mask), oracle.CountZero(mask); got != want {
				t.Fatalf("%s: CountZero of the mask %d, want %d", name, got, want)
			}

			got := clone(x)
			o.ApplyMask(got, mask)
			if string(got.Buf.Bytes()) != string(want.Buf.Bytes()) {
				t.Fatalf("%s: ApplyMask differs from the reference", name)
			}
		}
	})
}

// clone copies a matrix with its surroundings.
func clone(m kernels.Mat) kernels.Mat {
	b := kernels.NewHost(m.DType(), m.Buf.Len)
	copy(b.Bytes(), m.Buf.Bytes())
	m.Buf = b
	return m
}

// TestColSumSq: every level and thread count gives the same bits; against the reference, which adds in another order,
// n additions of positive F64 numbers differ by at most n units of 2^-53.
func TestColSumSq(t *testing.T) {
	levels := selectLevels()
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.OneOf(rapid.IntRange(1, 9), rapid.SampledFrom([]int{255, 257, 8500})).Draw(t, "rows")
		cols := rapid.IntRange(1, 40).Draw(t, "cols")
		if rows < 300 {
			cols = rapid.OneOf(rapid.Just(cols), rapid.SampledFrom([]int{2047, 2056, 2500})).Draw(t, "more cols")
		}

		x := selectMat(kernels.F32, rows, cols, rapid.IntRange(0, 3).Draw(t, "gap"))
		fillScores(t, x, rapid.IntRange(0, 4).Draw(t, "kind"))
		sum := func(o *kernels.Ops) []float64 {
			acc := kernels.NewHost(kernels.F64, cols+2)
			for j := range acc.F64() {
				acc.F64()[j] = float64(j)
			}
			o.ColSumSq(kernels.Mat{Buf: acc, Off: 1, Rows: 1, Cols: cols, Stride: cols}, x)
			return acc.F64()
		}

		want := sum(ref.New().Ops())
		var first []float64
		for name, d := range levels {
			got := sum(d.Ops())
			if first == nil {
				first = got
			}

			for j := range got {
				if got[j] != first[j] || math.Abs(got[j]-want[j]) > float64(rows+1)*0x1p-53*math.Abs(want[j]) {
					t.Fatalf("%s: column %d: %v, others %v, reference %v", name, j-1, got[j], first[j], want[j])
				}
			}
		}
	})
}
