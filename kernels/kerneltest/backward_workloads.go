package kerneltest

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
)

func normGradLoad(rows, cols int, layer bool) workload {
	return workload{
		name: fmt.Sprintf("%dx%d", rows, cols), bytes: float64(16 * rows * cols),
		setup: func(b bench) func(o *kernels.Ops) {
			dx := b.f32(rows, cols)
			dy := b.f32(rows, cols)
			x := b.f32(rows, cols)
			dw := b.f32(1, cols)
			db := b.f32(1, cols)
			w := b.f32(1, cols)
			if layer {
				return func(o *kernels.Ops) { o.LayerNormBackward(dx, dw, db, dy, x, w, 1e-5) }
			}

			return func(o *kernels.Ops) { o.RMSNormBackward(dx, dw, dy, x, w, 1e-5, false) }
		},
	}
}

// attentionGradLoads are the gradients of prompts: five products where the forward pass has two.
func attentionGradLoads() []workload {
	var list []workload
	for _, c := range []attentionCase{
		{tq: 256, heads: 8, kv: 4, dim: 64},
		{tq: 1024, heads: 8, kv: 4, dim: 64},
		{tq: 1024, heads: 4, kv: 4, dim: 128},
		{tq: 1024, heads: 8, kv: 4, dim: 64, window: 128},
	} {
		w := c.workload()
		w.flops *= 2.5
		w.setup = func(b bench) func(o *kernels.Ops) {
			wide, narrow := c.heads*c.dim, c.kv*c.dim
			dq := b.f32(c.tq, wide)
			dout := b.f32(c.tq, wide)
			q := b.f32(c.tq, wide)

			out := b.f32(c.tq, wide)
			dk := b.f32(c.tq, narrow)
			dv := b.f32(c.tq, narrow)
			k := b.f32(c.tq, narrow)
			v := b.f32(c.tq, narrow)
			a := kernels.Attention{
				Heads: c.heads, KVHeads: c.kv, HeadDim: c.dim, Window: c.window, Scale: 0.125,
				LSE: b.fill(c.tq, c.heads, 5),
			}

			return func(o *kernels.Ops) { o.AttentionBackward(dq, dk, dv, dout, q, k, v, out, a) }
		}

		list = append(list, w)
	}

	return list
}

func activationGradLoads(gated bool) []workload {
	var list []workload
	for i, f := range activations {
		name := []string{"SiLU", "GELU", "GELUTanh", "ReLU"}[i]
		if gated {
			list = append(list, mapLoad(name, 5, func(o *kernels.Ops, m []kernels.Mat) {
				o.GateBackward(m[0], m[1],
					m[2], m[3], m[4], f)
			}))
			continue
		}

		list = append(list, mapLoad(name, 3, func(o *kernels.Ops, m []kernels.Mat) {
			o.ActivateBackward(m[0], m[1],
				m[2], f)
		}))
	}

	return list
}

func crossEntropyGradLoad(rows, cols int) workload {
	return workload{
		name: fmt.Sprintf("%dx%d", rows, cols), bytes: float64(8 * rows * cols),
		setup: func(b bench) func(o *kernels.Ops) {
			loss := b.mat(kernels.F64, 1, rows)
			dx := b.f32(rows, cols)
			x := b.f32(rows, cols)
			labels := make([]int32, rows)
			return func(o *kernels.Ops) { o.CrossEntropyBackward(dx, loss, x, labels, 1) }
		},
	}
}

func gatherGradLoad() workload {
	return workload{name: "1024x512", bytes: 12 * 1024 * 512, setup: func(b bench) func(o *kernels.Ops) {
		table := b.f32(2000, 512)
		dy := b.f32(1024, 512)
		ids := make([]int32, 1024)
		for i := range ids {
			ids[i] = int32(b.rng.IntN(2000))
		}
		return func(o *kernels.Ops) { o.GatherBackward(table, dy, ids, 1e-3) }
	}}
}
