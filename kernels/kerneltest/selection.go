package kerneltest

import (
	"math"
	"math/rand/v2"

	"github.com/modelcompress/compress/kernels"
)

func colSumSq(r *run) {
	for _, s := range shapes() {
		r.begin("%v", s)
		acc, x := r.mat(kernels.F64, 1, s[1], uniform), r.f32(s[0], s[1])
		r.do(func(o *kernels.Ops, m view) { o.ColSumSq(m(acc), m(x)) }, acc)
		r.check(acc, tolerance{abs: 1e-13 * float64(s[0]+1)}) // float64 sums of values below 1, in any order
	}
	r.begin("bad shape")
	acc, x := r.mat(kernels.F64, 1, 4, uniform), r.f32(3, 5)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.ColSumSq(m(acc), m(x)) })
}

// ties fills with few distinct values of both signs, so that many scores are equal.
func ties(r *rand.Rand) float64 { return float64(r.IntN(13)-6) / 4 }

// scoreCase is one kind of score.
type scoreCase struct {
	t    kernels.DType
	col  bool
	raw  bool
	fill fill
}

func scoreCases() []scoreCase {
	var list []scoreCase
	for _, t := range weights {
		list = append(list, scoreCase{t: t, fill: uniform}, scoreCase{t: t, col: true, fill: uniform},
			scoreCase{t: t, fill: ties})
	}
	return append(list, scoreCase{t: kernels.F32, raw: true, fill: ties},
		scoreCase{t: kernels.F32, raw: true, fill: uniform})
}

// selection makes the operands of a selection for every shape and kind of score and calls f.
func (r *run) selection(f func(o *kernels.Ops, mask kernels.Mat, s kernels.Score)) {
	for i, s := range shapes() {
		for j, c := range scoreCases() {
			if (i+j)%2 > 0 && s[1] > 0 {
				continue
			}

			r.begin("%v %s col=%t raw=%t", s, c.t, c.col, c.raw)
			x, mask := r.mat(c.t, s[0], s[1], c.fill), r.mat(kernels.U8, s[0], s[1], ties)
			var col *operand
			if c.col {
				col = r.mat(kernels.F32, 1, s[1], func(g *rand.Rand) float64 { return math.Abs(uniform(g)) })
			}

			r.do(func(o *kernels.Ops, m view) { f(o, m(mask), kernels.Score{X: m(x), Col: m(col), Raw: c.raw}) }, mask)
			r.check(mask, exact) // scores are one rounded product: every backend has the same
		}
	}

	r.begin("bad shape")
	x, mask := r.f32(3, 8), r.mat(kernels.U8, 3, 9, ties)
	r.panics("a mask of another shape", func(o *kernels.Ops, m view) { f(o, m(mask), kernels.Score{X: m(x)}) })
}

func selectRows(r *run) {
	for _, share := range []float64{0, 0.5, 0.77, 1} {
		r.selection(func(o *kernels.Ops, mask kernels.Mat, s kernels.Score) {
			o.SelectRows(mask, s, int(share*float64(s.X.Cols)))
		})
	}
}

func selectAll(r *run) {
	for _, share := range []float64{0, 0.5, 0.93} {
		r.selection(func(o *kernels.Ops, mask kernels.Mat, s kernels.Score) {
			o.SelectAll(mask, s, int(share*float64(s.X.Len()))-1)
		})
	}
}

func selectNM(r *run) {
	for _, nm := range [][2]int{{2, 4}, {1, 4}, {4, 8}, {0, 3}, {3, 5}, {1, 2}, {16, 32}, {7, 7}} {
		r.selection(func(o *kernels.Ops, mask kernels.Mat, s kernels.Score) { o.SelectNM(mask, s, nm[0], nm[1]) })
	}
}

func applyMask(r *run) {
	for _, s := range shapes() {
		for _, t := range weights {
			r.begin("%v %s", s, t)
			w, mask := r.mat(t, s[0], s[1], uniform),
				r.mat(kernels.U8, s[0], s[1], func(g *rand.Rand) float64 { return float64(g.IntN(2)) })
			r.do(func(o *kernels.Ops, m view) { o.ApplyMask(m(w), m(mask)) }, w)
			r.check(w, exact)
			r.positiveZeros(w)
		}
	}

	r.begin("bad shape")
	w, mask := r.f32(3, 8), r.mat(kernels.U8, 3, 9, ties)
	r.panics("a mask of another shape", func(o *kernels.Ops, m view) { o.ApplyMask(m(w), m(mask)) })
}

// positiveZeros checks that the zeros of a destination have no sign.
func (r *run) positiveZeros(o *operand) {
	for _, s := range r.sides {
		b := wrap(o.at.DType(), o.after[s.index])
		for i := range o.at.Len() {
			v := get(b, o.at.Off+i/o.at.Cols*o.at.Stride+i%o.at.Cols)
			if v == 0 && math.Signbit(v) {
				r.fatalf("%selement %d is -0", s, i)
			}
		}
	}
}

func nonFinite(r *run) {
	for i, s := range shapes() {
		for _, t := range weights {
			r.begin("%v %s", s, t)
			x := r.mat(t, s[0], s[1], uniform)
			r.positions(x, "finite")
			if x.at.Len() == 0 {
				continue
			}

			for range 3 {
				at := r.rng.IntN(x.at.Len())
				r.poison(x, at/s[1], at%s[1], []float64{math.NaN(), math.Inf(1), math.Inf(-1)}[i%3])
				r.positions(x, "poisoned")
			}
		}
	}
}

// positions compares what NonFinite finds.
func (r *run) positions(x *operand, what string) {
	r.tb.Helper()
	r.counts(what+": first NaN or infinity", func(o *kernels.Ops, m view) int { return o.NonFinite(m(x)) })
}

// counts compares the numbers that an operation gives on all devices.
func (r *run) counts(what string, f func(o *kernels.Ops, m view) int) {
	r.tb.Helper()
	var got []int
	r.do(func(o *kernels.Ops, m view) { got = append(got, f(o, m)) })

	want := got[len(r.sides)]
	for i, s := range r.sides {
		if got[i] != want {
			r.fatalf("%s%s: %d, want %d", s, what, got[i], want)
		}
	}
}

func countZero(r *run) {
	zeros := func(g *rand.Rand) float64 {
		return []float64{0, math.Copysign(0, -1), 1, -0.5, 0x1p-24, math.NaN(), 3}[g.IntN(7)]
	}
	for _, s := range shapes() {
		for _, t := range append([]kernels.DType{kernels.U8}, weights...) {
			r.begin("%v %s", s, t)
			f := zeros
			if t == kernels.U8 {
				f = func(g *rand.Rand) float64 { return float64(g.IntN(4)) }
			}

			x := r.mat(t, s[0], s[1], f)
			r.counts("zeros", func(o *kernels.Ops, m view) int { return o.CountZero(m(x)) })
		}
	}
}
