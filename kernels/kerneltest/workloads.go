package kerneltest

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
)

// workloads has at least one benchmark for every field of kernels.Ops.
var workloads = map[string][]workload{
	"MatMulNT": productLoads(func(o *kernels.Ops, dst, a, b kernels.Mat, opt kernels.MatMul) {
		o.MatMulNT(dst, a, b,
			opt)
	},
		func(m, n, k int) [4]int { return [4]int{m, k, n, k} }, weights),
	"MatMulNN": productLoads(func(o *kernels.Ops, dst, a, b kernels.Mat, opt kernels.MatMul) {
		o.MatMulNN(dst, a, b,
			opt)
	},
		func(m, n, k int) [4]int { return [4]int{m, k, k, n} }, weights),
	"MatMulTN": productLoads(func(o *kernels.Ops, dst, a, b kernels.Mat, opt kernels.MatMul) {
		o.MatMulTN(dst, a, b,
			opt)
	},
		func(m, n, k int) [4]int { return [4]int{k, m, k, n} }, weights[:1]),
	"MatMulSparse": sparseLoads(),
	"Expand":       expandLoads(),

	"MatMulQuantised": quantisedLoads(),
	"GatherQuantised": gatherQuantisedLoads(),
	"ExpandQuantised": expandQuantisedLoads(),

	"Gather":       gatherLoads(),
	"ScatterAdd":   {scatterLoad()},
	"AddLowRank":   {lowRankLoad(1), lowRankLoad(16)},
	"RMSNorm":      normLoads(false),
	"LayerNorm":    normLoads(true),
	"RoPE":         {ropeLoad(false), ropeLoad(true)},
	"Attention":    attentionLoads(),
	"Activate":     activationLoads(false),
	"Gate":         activationLoads(true),
	"Add":          {mapLoad("", 3, func(o *kernels.Ops, m []kernels.Mat) { o.Add(m[0], m[1], m[2], 1) })},
	"Softcap":      {mapLoad("", 2, func(o *kernels.Ops, m []kernels.Mat) { o.Softcap(m[0], m[1], 30) })},
	"Softmax":      {mapLoad("", 2, func(o *kernels.Ops, m []kernels.Mat) { o.Softmax(m[0], m[1]) })},
	"CrossEntropy": {crossEntropyLoad(256, 32000), crossEntropyLoad(8, 256000)},
	"Convert":      convertLoads(),
	"ColSumSq":     {colSumSqLoad()},

	"RMSNormBackward":   {normGradLoad(1024, 512, false), normGradLoad(256, 4096, false)},
	"LayerNormBackward": {normGradLoad(1024, 512, true), normGradLoad(256, 4096, true)},
	"AttentionBackward": attentionGradLoads(),
	"ActivateBackward":  activationGradLoads(false),
	"GateBackward":      activationGradLoads(true),
	"SoftcapBackward": {mapLoad("", 3, func(o *kernels.Ops, m []kernels.Mat) {
		o.SoftcapBackward(m[0], m[1], m[2],
			30)
	})},
	"SoftmaxBackward": {mapLoad("", 3, func(o *kernels.Ops, m []kernels.Mat) {
		o.SoftmaxBackward(m[0], m[1],
			m[2])
	})},
	"CrossEntropyBackward": {crossEntropyGradLoad(256, 32000)},
	"GatherBackward":       {gatherGradLoad()},
	"ColSum": {{name: "1024x1024", bytes: 4 << 20, setup: func(b bench) func(o *kernels.Ops) {
		acc, x := b.f32(1, 1024), b.f32(1024, 1024)
		return func(o *kernels.Ops) { o.ColSum(acc, x) }
	}}},
	"AddSquare": {mapLoad("", 3, func(o *kernels.Ops, m []kernels.Mat) { o.AddSquare(m[0], m[1], 1e-3) })},
	"SelectRows": {selectLoad("half", func(o *kernels.Ops, mask kernels.Mat, s kernels.Score) {
		o.SelectRows(mask, s, s.X.Cols/2)
	})},
	"SelectAll": {selectLoad("half", func(o *kernels.Ops, mask kernels.Mat, s kernels.Score) {
		o.SelectAll(mask, s, s.X.Len()/2)
	})},
	"SelectNM": {selectLoad("2:4", func(o *kernels.Ops, mask kernels.Mat, s kernels.Score) {
		o.SelectNM(mask, s, 2,
			4)
	})},
	"ApplyMask": {{name: "1024x1024", bytes: 9 << 20, setup: func(b bench) func(o *kernels.Ops) {
		w, mask := b.f32(1024, 1024), b.mat(kernels.U8, 1024, 1024)
		return func(o *kernels.Ops) { o.ApplyMask(w, mask) }
	}}},
	"NonFinite": {{name: "1024x1024", bytes: 4 << 20, setup: func(b bench) func(o *kernels.Ops) {
		x := b.f32(1024, 1024)
		return func(o *kernels.Ops) { o.NonFinite(x) }
	}}},
	"CountZero": {{name: "1024x1024", bytes: 4 << 20, setup: func(b bench) func(o *kernels.Ops) {
		x := b.f32(1024, 1024)
		return func(o *kernels.Ops) { o.CountZero(x) }
	}}},
	"Sync": {{setup: func(bench) func(o *kernels.Ops) {
		return func(o *kernels.Ops) { _ = o.Sync() }
	}}},
}

// productLoads are a prompt's product and a single row, for every type.
func productLoads(call func(o *kernels.Ops, dst, a, b kernels.Mat, opt kernels.MatMul), shape func(m, n, k int) [4]int,
	types []kernels.DType,
) []workload {
	var list []workload
	for _, t := range types {
		for _, s := range [][3]int{{256, 512, 512}, {1, 2048, 2048}} {
			m := s[0]
			n := s[1]
			k := s[2]
			d := shape(m, n, k)
			list = append(list, workload{
				name:  fmt.Sprintf("%s-%dx%dx%d", t, m, n, k),
				bytes: float64(t.Size()*n*k + 4*m*(n+k)), flops: 2 * float64(m*n*k),
				setup: func(b bench) func(o *kernels.Ops) {
					dst := b.f32(m, n)
					x := b.f32(d[0], d[1])
					w := b.mat(t, d[2], d[3])
					return func(o *kernels.Ops) { call(o, dst, x, w, kernels.MatMul{}) }
				},
			})
		}
	}

	return list
}

func gatherLoads() []workload {
	var list []workload
	for _, t := range weights {
		list = append(list, workload{
			name: t.String(), bytes: float64(1024 * 1024 * (t.Size() + 4)),
			setup: func(b bench) func(o *kernels.Ops) {
				dst := b.f32(1024, 1024)
				src := b.mat(t, 2000, 1024)
				ids := make([]int32, 1024)
				for i := range ids {
					ids[i] = int32(b.rng.IntN(2000))
				}
				return func(o *kernels.Ops) { o.Gather(dst, src, ids, 1) }
			},
		})
	}

	return list
}

func scatterLoad() workload {
	return workload{name: "1024x1024", bytes: 12 << 20, setup: func(b bench) func(o *kernels.Ops) {
		dst := b.f32(2000, 1024)
		src := b.f32(1024, 1024)
		ids := make([]int32, 1024)
		scale := make([]float32, 1024)
		for i, p := range b.rng.Perm(2000)[:1024] {
			ids[i], scale[i] = int32(p), 0.5
		}
		return func(o *kernels.Ops) { o.ScatterAdd(dst, src, ids, scale) }
	}}
}

// lowRankLoad is 16 rows with a number of pairs between them.
func lowRankLoad(different int) workload {
	const rows, rank, in, out = 16, 8, 2048, 2048
	return workload{
		name: fmt.Sprintf("%dx%d of %d", rows, in, different), bytes: 4 * float64(different) * rank * (in + out),
		setup: func(b bench) func(o *kernels.Ops) {
			dst, x := b.f32(rows, out), b.f32(rows, in)
			pairs := make([]kernels.LowRank, rows)
			for i := range pairs {
				if i < different {
					pairs[i] = kernels.LowRank{A: b.f32(rank, in), B: b.f32(rank, out)}
				} else {
					pairs[i] = pairs[i%different]
				}
			}
			return func(o *kernels.Ops) { o.AddLowRank(dst, x, pairs) }
		},
	}
}

func normLoads(layer bool) []workload {
	var list []workload
	for _, s := range [][2]int{{1, 512}, {1, 4096}, {1024, 512}, {256, 4096}} {
		list = append(list, workload{
			name: fmt.Sprintf("%dx%d", s[0], s[1]), bytes: float64(8 * s[0] * s[1]),
			setup: func(b bench) func(o *kernels.Ops) {
				dst := b.f32(s[0], s[1])
				x := b.f32(s[0], s[1])
				w := b.f32(1, s[1])
				if layer {
					return func(o *kernels.Ops) { o.LayerNorm(dst, x, w, w, 1e-5) }
				}
				return func(o *kernels.Ops) { o.RMSNorm(dst, x, w, 1e-5, false) }
			},
		})
	}

	return list
}

func ropeLoad(interleaved bool) workload {
	return workload{
		name: map[bool]string{false: "halves", true: "pairs"}[interleaved], bytes: 8 * 1024 * 512,
		setup: func(b bench) func(o *kernels.Ops) {
			x, pos := b.f32(1024, 512), make([]int32, 1024)
			// A true rotation: with others the values would grow or vanish from call to call.
			cos, sin := b.fill(1024, 32, math.Cos(1)), b.fill(1024, 32, math.Sin(1))
			for i := range pos {
				pos[i] = int32(i)
			}
			r := kernels.Rope{Heads: 8, HeadDim: 64, Dim: 64, Cos: cos, Sin: sin, Pos: pos, Interleaved: interleaved}
			return func(o *kernels.Ops) { o.RoPE(x, r) }
		},
	}
}

// attentionLoads are prompts, where the count of multiplications matters, and steps of generation, where the
// keys and values are read once.
func attentionLoads() []workload {
	var list []workload
	for _, c := range []attentionCase{
		{tq: 256, heads: 8, kv: 4, dim: 64},
		{tq: 1024, heads: 8, kv: 4, dim: 64},
		{tq: 1024, heads: 4, kv: 4, dim: 128},
		{tq: 1024, heads: 8, kv: 4, dim: 64, window: 128},
		{tq: 1, pos: 255, heads: 8, kv: 4, dim: 64},
		{tq: 1, pos: 4095, heads: 8, kv: 4, dim: 64},
		{tq: 1, pos: 4095, heads: 8, kv: 8, dim: 128},
	} {
		list = append(list, c.workload())
	}

	return list
}

func (c attentionCase) workload() workload {
	tk := c.pos + c.tq
	pairs := 0
	for i := range c.tq {
		seen := c.pos + i + 1
		if c.window > 0 {
			seen = min(seen, c.window)
		}
		pairs += seen
	}

	w := workload{
		name:  fmt.Sprintf("q%d-k%d-h%d-kv%d-d%d-w%d", c.tq, tk, c.heads, c.kv, c.dim, c.window),
		flops: 4 * float64(pairs) * float64(c.heads*c.dim),
		setup: func(b bench) func(o *kernels.Ops) {
			dst, q := b.f32(c.tq, c.heads*c.dim), b.f32(c.tq, c.heads*c.dim)
			k, v := b.f32(tk, c.kv*c.dim), b.f32(tk, c.kv*c.dim)
			a := kernels.Attention{
				Heads: c.heads, KVHeads: c.kv, HeadDim: c.dim, Pos: c.pos, Window: c.window,
				Scale: float32(1 / math.Sqrt(float64(c.dim))),
			}
			return func(o *kernels.Ops) { o.Attention(dst, q, k, v, a) }
		},
	}

	if c.tq == 1 {
		w.bytes = float64(8 * tk * c.kv * c.dim)
	}

	return w
}

// mapLoad calls an element-wise operation on n matrices, the first of which is the destination.
func mapLoad(name string, n int, call func(o *kernels.Ops, m []kernels.Mat)) workload {
	return workload{name: name, bytes: float64(n * 4 << 18), setup: func(b bench) func(o *kernels.Ops) {
		m := make([]kernels.Mat, n)
		for i := range m {
			m[i] = b.f32(256, 1024)
		}
		return func(o *kernels.Ops) { call(o, m) }
	}}
}

func activationLoads(gated bool) []workload {
	var list []workload
	for i, f := range activations {
		name := []string{"SiLU", "GELU", "GELUTanh", "ReLU"}[i]
		if gated {
			list = append(list, mapLoad(name, 3, func(o *kernels.Ops, m []kernels.Mat) { o.Gate(m[0], m[1], m[2], f) }))
			continue
		}
		list = append(list, mapLoad(name, 2, func(o *kernels.Ops, m []kernels.Mat) { o.Activate(m[0], m[1], f) }))
	}

	return list
}

func crossEntropyLoad(rows, cols int) workload {
	return workload{
		name: fmt.Sprintf("%dx%d", rows, cols), bytes: float64(4 * rows * cols),
		setup: func(b bench) func(o *kernels.Ops) {
			loss := b.mat(kernels.F64, 1, rows)
			x := b.f32(rows, cols)
			labels := make([]int32, rows)
			return func(o *kernels.Ops) { o.CrossEntropy(loss, x, labels) }
		},
	}
}

func convertLoads() []workload {
	var list []workload
	for _, p := range [][2]kernels.DType{
		{kernels.BF16, kernels.F32},
		{kernels.F16, kernels.F32},
		{kernels.F32, kernels.BF16},
		{kernels.F32, kernels.F16},
		{kernels.BF16, kernels.F16},
		{kernels.F64, kernels.F32},
		{kernels.F32, kernels.F64},
	} {
		list = append(list, workload{
			name: fmt.Sprintf("%s-%s", p[0], p[1]), bytes: float64((p[0].Size() + p[1].Size()) << 22),
			setup: func(b bench) func(o *kernels.Ops) {
				x, dst := b.mat(p[0], 1024, 4096), b.mat(p[1], 1024, 4096)
				return func(o *kernels.Ops) { o.Convert(dst, x) }
			},
		})
	}

	return list
}

func colSumSqLoad() workload {
	return workload{name: "1024x1024", bytes: 4 << 20, setup: func(b bench) func(o *kernels.Ops) {
		acc, x := b.mat(kernels.F64, 1, 1024), b.f32(1024, 1024)
		return func(o *kernels.Ops) { o.ColSumSq(acc, x) }
	}}
}

// selectLoad selects among a million scores with a column factor.
func selectLoad(name string, call func(o *kernels.Ops, mask kernels.Mat, s kernels.Score)) workload {
	return workload{name: name, bytes: 5 << 20, setup: func(b bench) func(o *kernels.Ops) {
		mask := b.mat(kernels.U8, 1024, 1024)
		s := kernels.Score{X: b.f32(1024, 1024), Col: b.f32(1, 1024)}
		return func(o *kernels.Ops) { call(o, mask, s) }
	}}
}
