package kerneltest

import (
	"math"
	"math/rand/v2"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

func attentionBackward(r *run) {
	list := []attentionCase{
		{tq: 0, heads: 2, kv: 1, dim: 8},
		{tq: 0, pos: 3, extra: 40, heads: 2, kv: 1, dim: 8},
		{tq: 1, heads: 1, kv: 1, dim: 1},
		{tq: 1, pos: 499, heads: 4, kv: 2, dim: 64},
		{tq: 3, pos: 130, heads: 3, kv: 1, dim: 128, pad: 3},
		{tq: 16, pos: 77, heads: 8, kv: 2, dim: 12, softcap: 5, extra: 9},
		{tq: 32, heads: 2, kv: 2, dim: 64, extra: 50},
		{tq: 33, pos: 3, heads: 7, kv: 1, dim: 20},
		{tq: 65, heads: 4, kv: 4, dim: 8, window: 1},
		{tq: 70, pos: 100, heads: 4, kv: 2, dim: 96, window: 33, pad: 4},
		{tq: 129, heads: 2, kv: 1, dim: 80, window: 64, softcap: 3},
		{tq: 300, heads: 2, kv: 1, dim: 64},
		{tq: 520, heads: 2, kv: 2, dim: 16, window: 70},
		{tq: 90, heads: 1, kv: 1, dim: 256},
		{tq: 1100, heads: 2, kv: 1, dim: 4},
		{tq: 1600, heads: 1, kv: 1, dim: 5, window: 300},
		{tq: 50, pos: 2000, heads: 3, kv: 1, dim: 6, extra: 70},
	}

	for i, d := range []int{2, 3, 5, 7, 9, 15, 16, 17, 24, 31, 33, 48, 65} {
		list = append(list,
			attentionCase{tq: 1 + i*7, pos: i * 3, heads: 4, kv: 2, dim: d, window: i % 3 * 10, pad: i % 2})
	}

	for _, c := range list {
		r.attendBackward(c, 1)
		r.attendBackward(c, 4) // sharper scores
	}

	r.begin("bad calls")
	q := r.f32(4, 32)

	k := r.f32(4, 32)
	out := r.f32(4, 32)
	lse := r.f32(4, 4)
	for what, f := range map[string]func(*kernels.Attention){
		"an absent LSE":                  func(a *kernels.Attention) { a.LSE = kernels.Mat{} },
		"an LSE of another shape":        func(a *kernels.Attention) { a.LSE = a.LSE.RowRange(0, 3) },
		"fewer keys than positions":      func(a *kernels.Attention) { a.Pos = 1 },
		"a head wider than its memory":   func(a *kernels.Attention) { a.KVHeadStride = 9 },
		"a destination of another width": func(a *kernels.Attention) { a.HeadDim = 7 },
	} {
		r.panics(what, func(o *kernels.Ops, m view) {
			a := kernels.Attention{Heads: 4, KVHeads: 4, HeadDim: 8, Scale: 1, LSE: m(lse)}
			f(&a)
			o.AttentionBackward(m(q), m(k), m(k), m(out), m(q), m(k), m(k), m(out), a)
		})
	}

	r.panics("gradients of another shape", func(o *kernels.Ops, m view) {
		a := kernels.Attention{Heads: 4, KVHeads: 4, HeadDim: 8, Scale: 1, LSE: m(lse)}
		o.AttentionBackward(m(q).RowRange(0, 3), m(k), m(k), m(out), m(q), m(k), m(k), m(out), a)
	})
}

// attendBackward tests one shape with values in ±bound; result and LSE are those of the reference.
func (r *run) attendBackward(c attentionCase, bound float64) {
	r.tb.Helper()
	r.begin("%+v", c)
	stride := c.dim + c.pad

	f := spread(bound)
	tk := c.pos + c.tq + c.extra
	q := r.mat(kernels.F32, c.tq, c.heads*stride, f)
	k, v := r.mat(kernels.F32, tk, c.kv*stride, f), r.mat(kernels.F32, tk, c.kv*stride, f)
	a := kernels.Attention{
		Heads: c.heads, KVHeads: c.kv, HeadDim: c.dim, QHeadStride: stride, KVHeadStride: stride, Pos: c.pos,
		Window: c.window,
		Scale:  float32(1 / math.Sqrt(float64(c.dim))), Softcap: c.softcap,
	}

	out, lse := r.attended(q, k, v, a)
	dout := r.f32(c.tq, c.heads*c.dim)
	dq := r.f32(c.tq, c.heads*stride)
	dk := r.f32(tk, c.kv*stride)
	dv := r.f32(tk, c.kv*stride)
	r.do(func(o *kernels.Ops, m view) {
		a := a
		a.LSE = m(lse)
		o.AttentionBackward(m(dq), m(dk), m(dv), m(dout), m(q), m(k), m(v), m(out), a)
	}, dq, dk, dv)

	// A weight has the relative error of attentionTolerance, and so has every term of a sum; terms of both
	// signs cancel, so it is taken of the largest element. The difference in ds adds the rounding of two
	// numbers below 2·bound·√dim.
	weight := (2*bound*bound + 1) * 8 * 0x1p-24
	for _, d := range []*operand{dq, dk, dv} {
		r.check(d, tolerance{abs: 4 * weight * (1 + r.peak(d))})
	}
}

// attended computes attention on the reference backend and returns the result and LSE as operands.
func (r *run) attended(q, k, v *operand, a kernels.Attention) (out, lse *operand) {
	host := func(o *operand) kernels.Mat {
		m := o.at
		m.Buf = wrap(kernels.F32, o.before)
		return m
	}

	tq := q.at.Rows
	result := kernels.MatOf(kernels.NewHost(kernels.F32, tq*a.Heads*a.HeadDim), tq, a.Heads*a.HeadDim)
	a.LSE = kernels.MatOf(kernels.NewHost(kernels.F32, tq*a.Heads), tq, a.Heads)
	ref.New().Ops().Attention(result, host(q), host(k), host(v), a)
	copied := func(m kernels.Mat) *operand {
		i := -1
		return r.mat(kernels.F32, m.Rows, m.Cols, func(*rand.Rand) float64 {
			i++
			return get(m.Buf, i)
		})
	}

	return copied(result), copied(a.LSE)
}

// peak is the largest magnitude of a destination on the other device.
func (r *run) peak(o *operand) float64 {
	b, top := kernels.NewHost(o.at.DType(), o.at.Buf.Len), 0.0
	if err := r.other.Download(b.Bytes(), o.at.Buf, 0); err != nil {
		r.fatalf("%v", err)
	}

	for i := range o.at.Rows {
		for j := range o.at.Cols {
			top = max(top, math.Abs(get(b, o.at.Off+i*o.at.Stride+j)))
		}
	}

	return top
}
