package kerneltest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/modelcompress/compress/kernels"
)

func gather(r *run) {
	for _, s := range shapes() {
		for _, t := range weights {
			rows := s[0]
			r.begin("%v %s", s, t)
			src, dst := r.mat(t, 9, s[1], uniform), r.f32(rows, s[1])
			ids := make([]int32, rows)
			for i := range ids {
				ids[i] = int32(r.rng.IntN(9))
			}

			scale := []float32{1, 1.7}[rows%2]
			r.do(func(o *kernels.Ops, m view) { o.Gather(m(dst), m(src), ids, scale) }, dst)
			r.check(dst, exact) // one product, rounded once
		}
	}

	r.begin("bad ids")
	src, dst := r.f32(4, 8), r.f32(2, 8)
	for _, ids := range [][]int32{{0, 4}, {-1, 0}, {1}} {
		r.panics(fmt.Sprintf("ids %v of 4 rows", ids), func(o *kernels.Ops, m view) {
			o.Gather(m(dst), m(src), ids,
				1)
		})
	}
}

func scatterAdd(r *run) {
	for _, s := range shapes() {
		r.begin("%v", s)
		dst, src := r.f32(s[0]+3, s[1]), r.f32(s[0], s[1])
		ids, scale := make([]int32, s[0]), make([]float32, s[0])
		for i, p := range r.rng.Perm(s[0] + 3)[:s[0]] {
			ids[i], scale[i] = int32(p), float32(uniform(r.rng))
		}

		r.do(func(o *kernels.Ops, m view) { o.ScatterAdd(m(dst), m(src), ids, scale) }, dst)
		r.check(dst, tolerance{abs: 2 * 0x1p-24}) // values below 2: one or two roundings
	}

	r.begin("bad ids")
	dst, src := r.f32(4, 8), r.f32(1, 8)
	r.panics("an id past the end", func(o *kernels.Ops, m view) {
		o.ScatterAdd(m(dst), m(src), []int32{4},
			[]float32{1})
	})

	r.panics("ids and scales of different lengths", func(o *kernels.Ops, m view) {
		o.ScatterAdd(m(dst), m(src),
			[]int32{1}, nil)
	})
}

func addLowRank(r *run) {
	for _, s := range shapes() {
		for _, rank := range []int{1, 3, 8} {
			const in = 37
			r.begin("%v rank %d", s, rank)
			dst, x := r.f32(s[0], s[1]), r.f32(s[0], in)
			var a, b [2]*operand
			for i := range a {
				a[i], b[i] = r.f32(rank, in), r.f32(rank, s[1])
			}

			r.do(func(o *kernels.Ops, m view) {
				pairs := make([]kernels.LowRank, s[0])
				for i := range pairs {
					if k := (i + 1) % 3; k < 2 {
						pairs[i] = kernels.LowRank{A: m(a[k]), B: m(b[k])}
					}
				}
				o.AddLowRank(m(dst), m(x), pairs)
			}, dst)
			r.check(dst, tolerance{abs: float64(rank) * in * 0x1p-22}) // sums of numbers below 1
		}
	}

	r.begin("bad shapes")
	dst, x := r.f32(2, 8), r.f32(2, 6)
	a, b := r.f32(3, 6), r.f32(3, 8)
	for name, f := range map[string]func(m view) []kernels.LowRank{
		"fewer pairs than rows": func(m view) []kernels.LowRank { return []kernels.LowRank{{A: m(a), B: m(b)}} },
		"factors of the other side": func(m view) []kernels.LowRank {
			return []kernels.LowRank{{}, {A: m(b), B: m(a)}}
		},
	} {
		r.panics(name, func(o *kernels.Ops, m view) { o.AddLowRank(m(dst), m(x), f(m)) })
	}
}

// normTolerance: the statistics are exact to float64, the rest is three or four roundings.
var normTolerance = tolerance{abs: 1e-37, rel: 6 * 0x1p-24}

func rmsNorm(r *run) {
	for i, s := range shapes() {
		for _, t := range weights {
			r.begin("%v %s", s, t)
			x := r.mat(kernels.F32, s[0], s[1], spread(30))
			w := r.mat(t, 1, s[1], uniform)

			dst := r.f32(s[0], s[1])
			call := func(o *kernels.Ops, m view, dst *operand) { o.RMSNorm(m(dst), m(x), m(w), 1e-5, i%2 == 1) }
			r.do(func(o *kernels.Ops, m view) { call(o, m, dst) }, dst)
			tol := normTolerance
			if i%2 == 1 {
				tol.abs = 30 * 6 * 0x1p-24 // 1 + w is rounded, near w = -1 to nothing
			}

			r.check(dst, tol)
			r.inPlace(x, call)
		}
	}

	r.begin("NaN in one row")
	x := r.f32(3, 40)
	w := r.f32(1, 40)
	dst := r.f32(3, 40)

	r.poison(x, 1, 7, math.NaN())
	r.do(func(o *kernels.Ops, m view) { o.RMSNorm(m(dst), m(x), m(w), 1e-5, false) }, dst)
	r.check(dst, normTolerance)
	r.panics("a weight of another width", func(o *kernels.Ops, m view) {
		o.RMSNorm(m(dst), m(x), m(w).ColRange(0, 39),
			1e-5, false)
	})
}

func layerNorm(r *run) {
	for i, s := range shapes() {
		for _, t := range weights {
			r.begin("%v %s", s, t)
			offset := []float64{0, 1000}[i%2]
			x := r.mat(kernels.F32, s[0], s[1],
				func(g *rand.Rand) float64 { return float64(float32(offset + uniform(g))) })
			w, dst := r.mat(t, 1, s[1], uniform), r.f32(s[0], s[1])
			var b *operand
			if i%3 > 0 {
				b = r.mat(t, 1, s[1], uniform)
			}

			call := func(o *kernels.Ops, m view, dst *operand) { o.LayerNorm(m(dst), m(x), m(w), m(b), 1e-5) }
			r.do(func(o *kernels.Ops, m view) { call(o, m, dst) }, dst)
			// Normalised values are at most √c, mostly below 2; the bias is below 1. Near the mean the difference loses
			// its leading digits: with eps 1e-5 a rounding of x - mean is enlarged up to 1/√eps.
			tol := tolerance{abs: 24 * 0x1p-24, rel: 6 * 0x1p-24}
			if s[1] <= 4 {
				tol.abs = 4e-4
			}

			r.check(dst, tol)
			r.inPlace(x, call)
		}
	}

	r.begin("bad shape")
	x := r.f32(3, 40)
	w := r.f32(1, 40)
	dst := r.f32(3, 40)
	r.panics("a weight of another width", func(o *kernels.Ops, m view) {
		o.LayerNorm(m(dst), m(x), m(w).ColRange(0, 39), kernels.Mat{}, 1e-5)
	})
}

// poison writes v to one element of an operand on all devices.
func (r *run) poison(o *operand, i, j int, v float64) {
	b := wrap(o.at.DType(), o.before)
	set(b, o.at.Off+i*o.at.Stride+j, v)
	copy(o.before, b.Bytes())

	err := r.other.Upload(o.at.Buf, 0, o.before)
	for _, s := range r.sides {
		err = errors.Join(err, s.dev.Upload(o.bufs[s.index], 0, o.before))
	}
	if err != nil {
		r.fatalf("%v", err)
	}
}

func rope(r *run) {
	const positions = 50
	for i, dim := range []int{0, 2, 4, 6, 8, 10, 16, 18, 20, 30, 32, 34, 48, 62, 64, 66, 96, 128, 130, 256} {
		for _, interleaved := range []bool{false, true} {
			headDim := dim + i%3*2
			heads := 1 + i%4
			rows := []int{1, 3, 40}[i%3]
			stride := headDim + i%2*6
			r.begin("dim %d of %d, %d heads, interleaved %t", dim, headDim, heads, interleaved)

			angle := func(g *rand.Rand) float64 { return float64(float32(math.Sin(10 * g.Float64()))) }
			x := r.f32(rows, heads*stride)
			cos := r.mat(kernels.F32, positions, dim/2, angle)
			sin := r.mat(kernels.F32, positions, dim/2, angle)
			pos := make([]int32, rows)
			for t := range pos {
				pos[t] = int32(r.rng.IntN(positions))
			}

			spec := kernels.Rope{
				Heads: heads, HeadDim: headDim, HeadStride: stride, Dim: dim, Pos: pos, Interleaved: interleaved,
				Inverse: i%3 == 1,
			}

			if i%2 == 0 {
				spec.HeadStride = 0
			}

			r.do(func(o *kernels.Ops, m view) {
				s := spec
				s.Cos, s.Sin = m(cos), m(sin)
				o.RoPE(m(x), s)
			}, x)

			r.check(x, tolerance{abs: 3 * 0x1p-24}) // two products and a sum below 2, each rounded
		}
	}

	r.begin("bad calls")
	x, table := r.f32(2, 32), r.f32(4, 8)
	for what, f := range map[string]func(*kernels.Rope){
		"a position past the tables": func(s *kernels.Rope) { s.Pos = []int32{0, 4} },
		"too few positions":          func(s *kernels.Rope) { s.Pos = []int32{0} },
		"an odd Dim":                 func(s *kernels.Rope) { s.Dim = 15 },
		"more heads than columns":    func(s *kernels.Rope) { s.Heads = 3 },
		"tables of another width":    func(s *kernels.Rope) { s.Dim = 12 },
	} {
		r.panics(what, func(o *kernels.Ops, m view) {
			s := kernels.Rope{Heads: 2, HeadDim: 16, Dim: 16, Cos: m(table), Sin: m(table), Pos: []int32{0, 3}}
			f(&s)
			o.RoPE(m(x), s)
		})
	}
}

// attentionCase is a shape of attention: tk is Pos + tq + extra.
type attentionCase struct {
	tq, pos, extra, heads, kv, dim, window int
	softcap                                float32
	pad                                    int // elements between heads
}

func attention(r *run) {
	list := []attentionCase{
		{tq: 0, heads: 2, kv: 1, dim: 8},
		{tq: 1, heads: 1, kv: 1, dim: 1},
		{tq: 1, pos: 4999, heads: 4, kv: 2, dim: 64},
		{tq: 1, pos: 4999, heads: 2, kv: 2, dim: 20, window: 3000, softcap: 3},
		{tq: 3, pos: 130, heads: 3, kv: 1, dim: 128, pad: 3},
		{tq: 7, pos: 2047, heads: 2, kv: 1, dim: 32},
		{tq: 16, pos: 77, heads: 8, kv: 2, dim: 12, softcap: 5, extra: 9},
		{tq: 31, heads: 6, kv: 2, dim: 40},
		{tq: 32, heads: 2, kv: 2, dim: 64, extra: 5},
		{tq: 33, pos: 3, heads: 7, kv: 1, dim: 20},
		{tq: 65, heads: 4, kv: 4, dim: 8, window: 1},
		{tq: 70, pos: 100, heads: 4, kv: 2, dim: 96, window: 33, pad: 4},
		{tq: 129, heads: 2, kv: 1, dim: 80, window: 64, softcap: 50},
		{tq: 200, heads: 4, kv: 2, dim: 64},
		{tq: 90, heads: 1, kv: 1, dim: 256},
	}

	for i, d := range []int{2, 3, 4, 5, 7, 9, 15, 16, 17, 24, 31, 33, 48, 63, 65, 100} {
		list = append(list,
			attentionCase{tq: 1 + i*5, pos: i * 3, heads: 4, kv: 2, dim: d, window: i % 3 * 10, pad: i % 2})
	}

	for _, c := range list {
		r.attend(c, 1)
		r.attend(c, 6) // sharper scores
	}

	r.attendInfinite()
	r.begin("bad calls")
	q := r.f32(4, 32)

	k := r.f32(4, 32)
	dst := r.f32(4, 32)
	lse := r.f32(4, 4)
	for what, f := range map[string]func(*kernels.Attention){
		"fewer keys than positions":       func(a *kernels.Attention) { a.Pos = 1 },
		"heads no multiple of kv heads":   func(a *kernels.Attention) { a.KVHeads = 3 },
		"a head wider than its memory":    func(a *kernels.Attention) { a.KVHeadStride = 9 },
		"an LSE of another shape":         func(a *kernels.Attention) { a.LSE = a.LSE.RowRange(0, 3) },
		"a negative position":             func(a *kernels.Attention) { a.Pos = -1 },
		"a destination of another width":  func(a *kernels.Attention) { a.HeadDim = 7 },
		"query heads that are not all in": func(a *kernels.Attention) { a.QHeadStride = 16 },
	} {
		r.panics(what, func(o *kernels.Ops, m view) {
			a := kernels.Attention{Heads: 4, KVHeads: 4, HeadDim: 8, Scale: 1, LSE: m(lse)}
			f(&a)
			o.Attention(m(dst), m(q), m(k), m(k), a)
		})
	}
}

// attend tests one shape with values in ±bound.
func (r *run) attend(c attentionCase, bound float64) {
	r.tb.Helper()
	r.begin("%+v", c)
	stride, f := c.dim+c.pad, spread(bound)
	q := r.mat(kernels.F32, c.tq, c.heads*stride, f)
	k := r.mat(kernels.F32, c.pos+c.tq+c.extra, c.kv*stride, f)

	v := r.mat(kernels.F32, c.pos+c.tq+c.extra, c.kv*stride, f)
	dst := r.f32(c.tq, c.heads*c.dim)
	a := kernels.Attention{
		Heads: c.heads, KVHeads: c.kv, HeadDim: c.dim, QHeadStride: stride, KVHeadStride: stride, Pos: c.pos,
		Window: c.window,
		Scale:  float32(1 / math.Sqrt(float64(c.dim))), Softcap: c.softcap,
	}

	var lse *operand
	if c.pos%2 == 0 {
		lse = r.f32(c.tq, c.heads)
	}

	r.do(func(o *kernels.Ops, m view) {
		a := a
		a.LSE = m(lse)
		o.Attention(m(dst), m(q), m(k), m(v), a)
	}, present(dst, lse)...)

	r.check(dst, tolerance{abs: attentionTolerance(bound), rel: 1e-6})
	if lse != nil { // as far off as a score
		r.check(lse, tolerance{abs: attentionTolerance(bound) / bound, rel: 1e-6})
	}
}

// attentionTolerance: with values in ±b a score, a sum of dim products divided by √dim, is rarely above 2·b²,
// and is off by a few roundings; so is its weight, relatively. The result is a weighted mean of values below b.
func attentionTolerance(b float64) float64 { return b * (2*b*b + 1) * 8 * 0x1p-24 }

// attendInfinite puts -Inf scores before finite ones, which must not matter, and a NaN into the last query.
func (r *run) attendInfinite() {
	for _, tq := range []int{2, 40} {
		r.begin("infinite scores, %d queries", tq)
		const dim, pos = 16, 150
		one := func(*rand.Rand) float64 { return 1 }
		q := r.mat(kernels.F32, tq, dim, one)
		k := r.mat(kernels.F32, pos+tq, dim, uniform)
		v := r.f32(pos+tq, dim)
		for j := range 130 {
			r.poison(k, j, 3, math.Inf(-1))
		}

		r.poison(q, tq-1, 5, math.NaN())
		dst := r.f32(tq, dim)
		a := kernels.Attention{Heads: 1, KVHeads: 1, HeadDim: dim, Pos: pos, Scale: 0.25}
		r.do(func(o *kernels.Ops, m view) { o.Attention(m(dst), m(q), m(k), m(v), a) }, dst)
		r.check(dst, tolerance{abs: 2e-6})
	}
}
