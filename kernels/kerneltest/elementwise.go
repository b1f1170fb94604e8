package kerneltest

import (
	"math"
	"math/rand/v2"

	"github.com/modelcompress/compress/kernels"
)

// activations lists all of them.
var activations = []kernels.Activation{kernels.SiLU, kernels.GELU, kernels.GELUTanh, kernels.ReLU}

// activationTolerance: the exponential is good to 1e-7, quotient and product are rounded; far below zero, where the
// function vanishes, the argument's own rounding (relative to x²/2 at most) is what counts, hence the absolute part.
var activationTolerance = tolerance{abs: 1e-7, rel: 4e-7}

// specials fills with values that functions treat in their own way, and others between.
func specials(r *rand.Rand) float64 {
	list := []float64{
		0, math.Copysign(0, -1), math.Inf(1), math.NaN(), 1e-40, -1e-40, 1e-20, -1e-20, 88, -88, 104, -104, 1e4, -1e4,
		1e30, 0.625, -0.625,
	}
	if i := r.IntN(2 * len(list)); i < len(list) {
		return list[i]
	}
	return spread(12)(r)
}

func activate(r *run) {
	for i, s := range shapes() {
		for _, f := range activations {
			r.begin("%v activation %d", s, f)
			x, dst := r.mat(kernels.F32, s[0], s[1], []fill{spread(8), specials}[i%2]), r.f32(s[0], s[1])
			call := func(o *kernels.Ops, m view, dst *operand) { o.Activate(m(dst), m(x), f) }
			r.do(func(o *kernels.Ops, m view) { call(o, m, dst) }, dst)
			r.check(dst, activationTolerance)
			r.inPlace(x, call)
		}
	}

	r.begin("bad calls")
	x, dst := r.f32(2, 3), r.f32(3, 2)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.Activate(m(dst), m(x), kernels.ReLU) })
	r.panics("an unknown activation", func(o *kernels.Ops, m view) { o.Activate(m(x), m(x), 0) })
}

func gate(r *run) {
	for i, s := range shapes() {
		for _, f := range activations {
			r.begin("%v activation %d", s, f)
			g := r.mat(kernels.F32, s[0], s[1], spread(8))
			u := r.mat(kernels.F32, s[0], s[1], uniform)
			dst := r.f32(s[0], s[1])
			r.do(func(o *kernels.Ops, m view) { o.Gate(m(dst), m(g), m(u), f) }, dst)
			r.check(dst, activationTolerance)

			if i%2 == 0 {
				r.inPlace(g, func(o *kernels.Ops, m view, dst *operand) { o.Gate(m(dst), m(g), m(u), f) })
			} else {
				r.inPlace(u, func(o *kernels.Ops, m view, dst *operand) { o.Gate(m(dst), m(g), m(u), f) })
			}
		}
	}

	r.begin("bad shape")
	x, dst := r.f32(2, 3), r.f32(3, 2)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.Gate(m(dst), m(x), m(x), kernels.ReLU) })
}

func add(r *run) {
	for i, s := range shapes() {
		r.begin("%v", s)
		a := r.f32(s[0], s[1])
		b := r.f32(s[0], s[1])
		dst := r.f32(s[0], s[1])
		scale := []float32{1, -0.3}[i%2]
		r.do(func(o *kernels.Ops, m view) { o.Add(m(dst), m(a), m(b), scale) }, dst)
		r.check(dst, tolerance{abs: 2 * 0x1p-24}) // values below 2: one or two roundings

		if i%4 < 2 {
			r.inPlace(a, func(o *kernels.Ops, m view, dst *operand) { o.Add(m(dst), m(a), m(b), scale) })
		} else {
			r.inPlace(b, func(o *kernels.Ops, m view, dst *operand) { o.Add(m(dst), m(a), m(b), scale) })
		}
	}

	r.begin("bad shape")
	x, dst := r.f32(2, 3), r.f32(3, 2)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.Add(m(dst), m(x), m(x), 1) })
}

func softcap(r *run) {
	for i, s := range shapes() {
		r.begin("%v", s)
		x, dst := r.mat(kernels.F32, s[0], s[1], []fill{spread(100), spread(0.5), specials}[i%3]), r.f32(s[0], s[1])
		call := func(o *kernels.Ops, m view, dst *operand) { o.Softcap(m(dst), m(x), 30) }
		r.do(func(o *kernels.Ops, m view) { call(o, m, dst) }, dst)
		r.check(dst, tolerance{abs: 1e-37, rel: 5e-7}) // tanh to 1.5e-7, the quotient and the product rounded
		r.inPlace(x, call)
	}

	r.begin("bad shape")
	x, dst := r.f32(2, 3), r.f32(3, 2)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.Softcap(m(dst), m(x), 30) })
}

func softmax(r *run) {
	for i, s := range shapes() {
		r.begin("%v", s)
		x, dst := r.mat(kernels.F32, s[0], s[1], []fill{spread(20), spread(0.5), spread(200)}[i%3]), r.f32(s[0], s[1])
		call := func(o *kernels.Ops, m view, dst *operand) { o.Softmax(m(dst), m(x)) }
		r.do(func(o *kernels.Ops, m view) { call(o, m, dst) }, dst)
		// The difference to the highest is rounded (below 400), then the exponential is good to 1e-7.
		r.check(dst, tolerance{abs: 1e-37, rel: 3e-7 + 400*0x1p-25})
		r.inPlace(x, call)
	}

	r.begin("special rows")
	x, dst := r.f32(5, 37), r.f32(5, 37)
	for j := range 37 {
		r.poison(x, 1, j, math.Inf(-1)) // NaN in the whole row
	}

	r.poison(x, 2, 5, math.Inf(-1)) // 0 there
	r.poison(x, 3, 36, math.Inf(1))
	r.poison(x, 4, 0, math.NaN())
	r.do(func(o *kernels.Ops, m view) { o.Softmax(m(dst), m(x)) }, dst)
	r.checkEach(dst, func(i, _ int) tolerance { return tolerance{rel: 5e-7} })
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.Softmax(m(dst), m(x).ColRange(0, 36)) })
}

func crossEntropy(r *run) {
	for i, s := range shapes() {
		if s[1] == 0 {
			continue
		}

		r.begin("%v", s)
		x, loss := r.mat(kernels.F32, s[0], s[1], []fill{spread(20), spread(0.5)}[i%2]),
			r.mat(kernels.F64, 1, s[0], uniform)
		labels := make([]int32, s[0])
		for t := range labels {
			labels[t] = int32(r.rng.IntN(s[1]+s[1]/8+1)) - int32(s[1]/8) - 1
		}

		r.do(func(o *kernels.Ops, m view) { o.CrossEntropy(m(loss), m(x), labels) }, loss)
		// Exponentials good to 2e-7 and differences below 40 rounded to float32; the sums are float64.
		r.check(loss, tolerance{abs: 2e-7 + 40*0x1p-25})
	}

	r.begin("special rows")
	x, loss := r.f32(4, 50), r.mat(kernels.F64, 1, 4, uniform)
	r.poison(x, 0, 49, math.NaN())
	r.poison(x, 1, 3, math.Inf(-1))
	r.poison(x, 2, 3, math.Inf(1))
	r.poison(x, 3, 3, math.NaN())

	labels := []int32{1, 3, 4, -1} // NaN, +Inf, NaN, 0
	r.do(func(o *kernels.Ops, m view) { o.CrossEntropy(m(loss), m(x), labels) }, loss)
	r.check(loss, tolerance{abs: 1e-6})
	r.panics("a label past the row", func(o *kernels.Ops, m view) {
		o.CrossEntropy(m(loss), m(x),
			[]int32{0, 0, 0, 50})
	})

	r.panics("too few labels", func(o *kernels.Ops, m view) { o.CrossEntropy(m(loss), m(x), []int32{0, 0, 0}) })
}

// rounds fills with values at and around the ties and limits of the 16-bit types.
func rounds(r *rand.Rand) float64 {
	switch r.IntN(8) {
	case 0:
		return math.Inf(r.IntN(2)*2 - 1)
	case 1:
		return math.NaN()
	case 2: // a tie of BF16, moved by less than float32 can tell or not at all
		return math.Float64frombits(uint64(r.Uint32())<<32&0x0003e000_00000000|0x3ff01000_00000000) + float64(
			r.IntN(3)-1)*0x1p-50
	case 3: // a tie of F16
		return (1 + float64(2*r.IntN(1024)+1)*0x1p-11) * math.Ldexp(1, r.IntN(30)-14)
	case 4: // the edge of F16's range, and subnormal results
		return []float64{
			65504, 65519.99, 65520, 65536, 0x1p-24, 0x1p-25, 0x1.8p-25, 0x1.000001p-25, 1e-39,
			3.3e38,
		}[r.IntN(10)]
	}

	return float64(math.Float32frombits(r.Uint32()))
}

func convert(r *run) {
	types := []kernels.DType{kernels.F32, kernels.BF16, kernels.F16, kernels.F64}
	for i, s := range shapes() {
		for _, to := range types {
			for _, from := range types {
				if s[0]*s[1] > 1<<16 && i > 3 {
					continue
				}

				r.begin("%v %s to %s", s, from, to)
				x, dst := r.mat(from, s[0], s[1], rounds), r.mat(to, s[0], s[1], uniform)
				r.do(func(o *kernels.Ops, m view) { o.Convert(m(dst), m(x)) }, dst)
				r.check(dst, exact)
			}
		}
	}

	r.begin("bad shape")
	x, dst := r.f32(2, 3), r.f32(3, 2)
	r.panics("shapes that differ", func(o *kernels.Ops, m view) { o.Convert(m(dst), m(x)) })
}
