package kerneltest

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
)

// slopeTolerance: a derivative below 1.2 is a sum of two terms below that, each a product of functions good to
// 2e-7; beyond the clamps of the exponential, where it vanishes, the absolute part is what is left.
var slopeTolerance = tolerance{abs: 5e-7, rel: 4e-7}

func activateBackward(r *run) {
	for i, s := range shapes() {
		for _, f := range activations {
			r.begin("%v activation %d", s, f)
			x := r.mat(kernels.F32, s[0], s[1], []fill{spread(8), specials}[i%2])
			dy := r.f32(s[0], s[1])
			dx := r.f32(s[0], s[1])
			r.do(func(o *kernels.Ops, m view) { o.ActivateBackward(m(dx), m(dy), m(x), f) }, dx)
			r.check(dx, slopeTolerance)

			if i%4 < 2 {
				r.inPlace(x, func(o *kernels.Ops, m view, dst *operand) { o.ActivateBackward(m(dst), m(dy), m(x), f) })
			} else {
				r.inPlace(dy, func(o *kernels.Ops, m view, dst *operand) { o.ActivateBackward(m(dst), m(dy), m(x), f) })
			}
		}
	}

	r.begin("bad calls")
	x, dx := r.f32(2, 3), r.f32(3, 2)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.ActivateBackward(m(dx), m(x), m(x), kernels.ReLU) })
	r.panics("an unknown activation", func(o *kernels.Ops, m view) { o.ActivateBackward(m(x), m(x), m(x), 0) })
}

func gateBackward(r *run) {
	for i, s := range shapes() {
		for _, f := range activations {
			r.begin("%v activation %d", s, f)
			g := r.mat(kernels.F32, s[0], s[1], spread(8))
			u := r.f32(s[0], s[1])

			dy := r.f32(s[0], s[1])
			dg, du := r.f32(s[0], s[1]), r.f32(s[0], s[1])
			r.do(func(o *kernels.Ops, m view) { o.GateBackward(m(dg), m(du), m(dy), m(g), m(u), f) }, dg, du)
			r.check(dg, slopeTolerance)
			r.check(du, activationTolerance)

			switch i % 3 {
			case 0:
				r.inPlace(g, func(o *kernels.Ops, m view, dst *operand) {
					o.GateBackward(m(dst), m(du), m(dy), m(g),
						m(u), f)
				})
			case 1:
				r.inPlace(u, func(o *kernels.Ops, m view, dst *operand) {
					o.GateBackward(m(dg), m(dst), m(dy), m(g),
						m(u), f)
				})
			default:
				r.do(func(o *kernels.Ops, m view) { o.GateBackward(m(g), m(u), m(dy), m(g), m(u), f) }, g, u)
				r.check(g, slopeTolerance)
				r.check(u, activationTolerance)
			}
		}
	}

	r.begin("bad calls")
	x, dx := r.f32(2, 3), r.f32(3, 2)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) {
		o.GateBackward(m(x), m(dx), m(x), m(x), m(x),
			kernels.ReLU)
	})

	r.panics("an unknown activation", func(o *kernels.Ops, m view) { o.GateBackward(m(x), m(x), m(x), m(x), m(x), 9) })
}

func softcapBackward(r *run) {
	for _, s := range shapes() {
		r.begin("%v", s)
		y := r.mat(kernels.F32, s[0], s[1], spread(30))
		dy := r.f32(s[0], s[1])

		dx := r.f32(s[0], s[1])
		call := func(o *kernels.Ops, m view, dst *operand) { o.SoftcapBackward(m(dst), m(dy), m(y), 30) }
		r.do(func(o *kernels.Ops, m view) { call(o, m, dx) }, dx)
		r.check(dx, tolerance{abs: 6 * 0x1p-24}) // the square has two or three roundings and cancels 1 near the cap
		r.inPlace(dy, call)
	}

	r.begin("bad calls")
	x, dx := r.f32(2, 3), r.f32(3, 2)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.SoftcapBackward(m(dx), m(x), m(x), 30) })
	r.panics("a cap of 0", func(o *kernels.Ops, m view) { o.SoftcapBackward(m(x), m(x), m(x), 0) })
}

func softmaxBackward(r *run) {
	for _, s := range shapes() {
		r.begin("%v", s)
		y := r.mat(kernels.F32, s[0], s[1], spread(1/float64(s[1]+1)))
		dy := r.f32(s[0], s[1])

		dx := r.f32(s[0], s[1])
		call := func(o *kernels.Ops, m view, dst *operand) { o.SoftmaxBackward(m(dst), m(dy), m(y)) }
		r.do(func(o *kernels.Ops, m view) { call(o, m, dx) }, dx)
		// the difference, below 2, is rounded twice, its product once
		r.check(dx, tolerance{abs: 4 * 0x1p-24 / float64(s[1]+1)})
		r.inPlace(dy, call)
	}

	r.begin("bad shape")
	x, dx := r.f32(2, 3), r.f32(3, 2)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.SoftmaxBackward(m(dx), m(x), m(x)) })
}

func crossEntropyBackward(r *run) {
	for i, s := range shapes() {
		if s[1] == 0 {
			continue
		}

		r.begin("%v", s)
		bound := []float64{20, 0.5}[i%2]
		x, dx := r.mat(kernels.F32, s[0], s[1], spread(bound)), r.f32(s[0], s[1])
		var loss *operand
		if i%3 > 0 {
			loss = r.mat(kernels.F64, 1, s[0], uniform)
		}

		labels := make([]int32, s[0])
		for t := range labels {
			labels[t] = int32(r.rng.IntN(s[1]+s[1]/8+1)) - int32(s[1]/8) - 1
		}

		call := func(o *kernels.Ops, m view, dst *operand) {
			o.CrossEntropyBackward(m(dst), m(loss), m(x), labels,
				0.7)
		}

		written := []*operand{dx}
		if loss != nil {
			written = append(written, loss)
		}

		r.do(func(o *kernels.Ops, m view) { call(o, m, dx) }, written...)
		// As for CrossEntropy: differences to the highest, below 2·bound, are rounded, and exponentials good to 1e-7.
		r.check(dx, tolerance{abs: 2e-7, rel: 3e-7 + 2*bound*0x1p-24})
		if loss != nil {
			r.check(loss, tolerance{abs: 2e-7 + 40*0x1p-25})
		}

		r.inPlace(x, call)
	}

	r.begin("special rows")
	x, dx := r.f32(3, 50), r.f32(3, 50)
	r.poison(x, 0, 49, math.NaN())
	r.poison(x, 1, 3, math.Inf(-1))
	r.poison(x, 2, 3, math.NaN())

	labels := []int32{1, 3, -1} // NaN, a label without weight, zeros
	r.do(func(o *kernels.Ops, m view) { o.CrossEntropyBackward(m(dx), kernels.Mat{}, m(x), labels, 1) }, dx)
	r.check(dx, tolerance{abs: 1e-6})
	for what, l := range map[string][]int32{"a label past the row": {0, 0, 50}, "too few labels": {0, 0}} {
		r.panics(what, func(o *kernels.Ops, m view) { o.CrossEntropyBackward(m(dx), kernels.Mat{}, m(x), l, 1) })
	}

	r.panics("shapes that differ", func(o *kernels.Ops, m view) {
		o.CrossEntropyBackward(m(dx).ColRange(0, 49), kernels.Mat{}, m(x), labels, 1)
	})
}

func gatherBackward(r *run) {
	for _, s := range shapes() {
		r.begin("%v", s)
		table, dy := r.f32(9, s[1]), r.f32(s[0], s[1])
		ids := make([]int32, s[0])
		for i := range ids {
			ids[i] = int32(r.rng.IntN(9))
		}

		r.do(func(o *kernels.Ops, m view) { o.GatherBackward(m(table), m(dy), ids, 0.7) }, table)
		// float32 sums of a row's share of values below 1, of either sign
		r.check(table, tolerance{abs: float64(s[0]/3+6) * 2 * 0x1p-24})
	}

	r.begin("bad ids")
	table, dy := r.f32(4, 8), r.f32(2, 8)
	for _, ids := range [][]int32{{0, 4}, {-1, 0}, {1}} {
		r.panics(fmt.Sprintf("ids %v of 4 rows", ids), func(o *kernels.Ops, m view) {
			o.GatherBackward(m(table), m(dy),
				ids, 1)
		})
	}
}

func colSum(r *run) {
	for i, s := range shapes() {
		r.begin("%v", s)
		acc := r.mat(kernels.F64, 1, s[1], uniform)
		x := r.f32(s[0], s[1])
		tol := tolerance{abs: 1e-13 * float64(s[0]+1)}
		if i%2 == 1 {
			acc, tol = r.f32(1, s[1]), tolerance{abs: 1e-9, rel: 2 * 0x1p-24} // one rounding of a float64 sum
		}

		r.do(func(o *kernels.Ops, m view) { o.ColSum(m(acc), m(x)) }, acc)
		r.check(acc, tol)
	}

	r.begin("many rows")
	acc, x := r.f32(1, 3), r.f32(9001, 3)
	r.do(func(o *kernels.Ops, m view) { o.ColSum(m(acc), m(x)) }, acc)
	r.check(acc, tolerance{abs: 1e-9, rel: 2 * 0x1p-24})
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.ColSum(m(acc).ColRange(0, 2), m(x)) })
}

func addSquare(r *run) {
	for _, s := range shapes() {
		r.begin("%v", s)
		acc, x := r.f32(s[0], s[1]), r.f32(s[0], s[1])
		r.do(func(o *kernels.Ops, m view) { o.AddSquare(m(acc), m(x), 0.7) }, acc)
		r.check(acc, tolerance{abs: 3 * 0x1p-24}) // values below 1: the factor, its square and the sum are rounded
	}
	r.begin("bad shape")
	x, acc := r.f32(2, 3), r.f32(3, 2)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.AddSquare(m(acc), m(x), 1) })
}

// normRows is, for every row of x, the factor 1/sqrt(mean((x - centre)²) + eps) of a norm and the largest
// normalised value.
func normRows(x *operand, centred bool, eps float64) (r, top []float64) {
	b, c := wrap(kernels.F32, x.before), float64(x.at.Cols)
	for i := range x.at.Rows {
		mean := 0.0
		square := 0.0
		peak := 0.0
		for pass := range 2 {
			for j := range x.at.Cols {
				v := get(b, x.at.Off+i*x.at.Stride+j)
				switch {
				case pass == 0 && centred:
					mean += v / c
				case pass == 1:
					square += (v - mean) * (v - mean) / c
					peak = max(peak, math.Abs(v-mean))
				}
			}
		}

		f := 1 / math.Sqrt(square+eps)
		r, top = append(r, f), append(top, peak*f)
	}

	return r, top
}

// checkNorm holds the gradients of a norm to the reference. Gradients and weights are below 1 (2 with plusOne):
// a row of dx is r times a sum of three terms, of which the last has the normalised value as a factor; and
// where the norm takes a difference to the mean, r enlarges its rounding. A column of dw is a sum of normalised
// values, in float32 over some rows.
func (r *run) checkNorm(dx, dw, db, x *operand, centred bool) {
	r.tb.Helper()
	factor, top := normRows(x, centred, 1e-5)
	r.checkEach(dx, func(i, _ int) tolerance {
		spread := 1.0
		if centred {
			spread += factor[i] / 4
		}
		return tolerance{abs: (2 + 12*factor[i]*(2+top[i])*spread) * 0x1p-24}
	})

	sum := 4.0
	for i, v := range top {
		sum += 8 * (v + factor[i]/8)
	}

	for _, d := range []*operand{dw, db} {
		if d != nil {
			r.check(d, tolerance{abs: sum * 0x1p-24})
		}
	}
}

// present lists the operands that are not nil.
func present(list ...*operand) []*operand {
	var out []*operand
	for _, o := range list {
		if o != nil {
			out = append(out, o)
		}
	}
	return out
}

func rmsNormBackward(r *run) {
	for i, s := range append(shapes(), [2]int{200, 33}) {
		for k, t := range weights {
			r.begin("%v %s", s, t)
			x := r.mat(kernels.F32, s[0], s[1], spread(30))
			w := r.mat(t, 1, s[1], uniform)
			dy := r.f32(s[0], s[1])
			dx := r.f32(s[0], s[1])
			var dw *operand
			if (i+k)%3 > 0 {
				dw = r.f32(1, s[1])
			}

			r.do(func(o *kernels.Ops, m view) { o.RMSNormBackward(m(dx), m(dw), m(dy), m(x), m(w), 1e-5, i%2 == 1) },
				present(dx, dw)...)
			r.checkNorm(dx, dw, nil, x, false)
		}
	}

	r.begin("NaN in one row")
	x := r.f32(3, 40)
	w := r.f32(1, 40)
	dy := r.f32(3, 40)
	dx := r.f32(3, 40)

	r.poison(x, 1, 7, math.NaN())
	r.do(func(o *kernels.Ops, m view) { o.RMSNormBackward(m(dx), kernels.Mat{}, m(dy), m(x), m(w), 1e-5, false) }, dx)
	r.check(dx, tolerance{abs: 1e-6})
	r.panics("a weight of another width", func(o *kernels.Ops, m view) {
		o.RMSNormBackward(m(dx), kernels.Mat{}, m(dy), m(x), m(w).ColRange(0, 39), 1e-5, false)
	})
	r.panics("a gradient of another shape", func(o *kernels.Ops, m view) {
		o.RMSNormBackward(m(dx), m(dy), m(dy), m(x), m(w), 1e-5, false)
	})
}

func layerNormBackward(r *run) {
	for i, s := range append(shapes(), [2]int{200, 33}) {
		for k, t := range weights {
			r.begin("%v %s", s, t)
			x := r.f32(s[0], s[1])
			w := r.mat(t, 1, s[1], uniform)

			dy := r.f32(s[0], s[1])
			dx := r.f32(s[0], s[1])
			var dw, db *operand
			if (i+k)%3 > 0 {
				dw = r.f32(1, s[1])
			}
			if (i+k)%3 < 2 {
				db = r.f32(1, s[1])
			}

			r.do(func(o *kernels.Ops, m view) { o.LayerNormBackward(m(dx), m(dw), m(db), m(dy), m(x), m(w), 1e-5) },
				present(dx, dw, db)...)
			r.checkNorm(dx, dw, db, x, true)
		}
	}

	r.begin("bad shape")
	x := r.f32(3, 40)
	w := r.f32(1, 40)
	dy := r.f32(3, 40)
	dx := r.f32(3, 40)
	r.panics("a weight of another width", func(o *kernels.Ops, m view) {
		o.LayerNormBackward(m(dx), kernels.Mat{}, kernels.Mat{}, m(dy), m(x), m(w).ColRange(0, 39), 1e-5)
	})
	r.panics("a gradient of another shape", func(o *kernels.Ops, m view) {
		o.LayerNormBackward(m(dx), kernels.Mat{}, m(dy), m(dy), m(x), m(w), 1e-5)
	})
}
