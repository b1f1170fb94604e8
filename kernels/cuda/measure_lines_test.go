//go:build linux && (amd64 || arm64)

package cuda

import (
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// peak is the bandwidth of the device's memory in GB/s, from its clock and the width of its bus; 0 if the
// driver does not say.
func peak(t testing.TB, d *Device) float64 {
	t.Helper()
	d.enter()
	defer d.leave()

	var v [2]float64
	for i, attribute := range []uintptr{36, 37} { // kHz, bits
		d.out[0] = 0
		if err := d.check(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&d.out[0])), attribute, d.handle); err != nil {
			t.Fatal(err)
		}
		v[i] = float64(int32(d.out[0]))
	}

	return 2 * v[0] * 1e3 * v[1] / 8 / 1e9
}

// seconds is the least time of f and of what it started, by the host's clock.
func seconds(t testing.TB, d *Device, repeats int, f func()) float64 {
	t.Helper()
	best := math.Inf(1)
	for range repeats + 1 {
		if err := d.sync(); err != nil {
			t.Fatal(err)
		}

		start := time.Now()
		f()
		if err := d.sync(); err != nil {
			t.Fatal(err)
		}

		best = min(best, time.Since(start).Seconds())
	}

	return best
}

// uploads is the rate of Upload from memory of the program, as a fraction of the rate of transfers from pinned memory.
func uploads(t testing.TB, d *Device, shrink int) (gbps, fraction float64) {
	t.Helper()
	const slots = 4
	n := 64 / shrink * slots * d.large.size
	if shrink > 16 {
		n = d.large.size
	}

	b, err := d.Alloc(kernels.U8, n)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()

	src := make([]byte, n)
	for i := 0; i < n; i += 512 { // pages that were never written are one page, which stays in the cache
		src[i] = byte(i >> 9)
	}

	up := seconds(t, d, 3, func() {
		if err := d.Upload(b, 0, src); err != nil {
			t.Fatal(err)
		}
	})

	m := kernels.MatOf(b, 1, n)
	pinned := seconds(t, d, 3, func() {
		d.operation("pinned", func() {
			for at := 0; at < n; at += d.large.size {
				d.do(cuMemcpyHtoDAsync, d.of(m).p+uintptr(at),
					uintptr(unsafe.Pointer(&d.large.list[at/d.large.size%slots].memory[0])), uintptr(d.large.size),
					d.compute)
			}
		}, m)
	})

	return float64(n) / up / 1e9, pinned / up
}

// candidates is the time in milliseconds of scoring and masking one formula of a search, over so many different
// ones, with all that is done to compile them; and the time of the first one, for which the driver compiles the
// interpreter unless it kept that from another run.
func candidates(t testing.TB, d *Device, w, norm, mask kernels.Mat, number int) (ms, first float64) {
	t.Helper()
	b, err := d.Alloc(kernels.F32, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()

	in := kernels.FormulaInputs{Matrices: []kernels.Mat{w}, Vectors: []kernels.Mat{norm}, Stats: kernels.MatOf(b, 1, 2)}
	one := func(k int) {
		f := kernels.Formula{{Op: kernels.LoadMatrix}, {Op: kernels.LoadCol}, {Op: kernels.Times, A: 0, B: 1}}
		for bit := range 8 { // a different formula every time
			op := kernels.Root
			if k>>bit&1 == 1 {
				op = kernels.Absolute
			}
			f = append(f, kernels.FormulaInstr{Op: op, A: len(f) - 1})
		}

		if err := d.SelectFormula(mask, f, in, mask.Cols/2); err != nil {
			t.Fatal(err)
		}
	}

	timed := func(from, to int) float64 {
		start := time.Now()
		for k := from; k < to; k++ {
			one(k)
		}
		if err := d.sync(); err != nil {
			t.Fatal(err)
		}
		return time.Since(start).Seconds() * 1e3
	}

	first = timed(0, 1)
	return timed(1, number) / float64(max(number-1, 1)), first
}

// llama is the work of a Llama with 1.24B parameters (2048 channels, 16 blocks, 32 query and 8 key heads of 64,
// 8192 gate channels, 128,256 words), whose blocks share one set of drawn weights: its operations, without the
// tables.
type llama struct {
	d                                         *Device
	tokens, hidden, inner, heads, groups, dim int
	blocks, words                             int
	x, h, q, k, v, o, g, u, logits, lse       kernels.Mat
	dx, dq, dk, dv, dg, du                    kernels.Mat
	wq, wk, wo, wg, wd, head, norm            kernels.Mat
	a, b, low, da, db                         kernels.Mat // an adapter of rank 16 on the queries
}

func newLlama(t testing.TB, d *Device, shrink int) *llama {
	t.Helper()
	l := &llama{
		d: d, tokens: 1024 / shrink, hidden: 2048 / shrink, inner: 8192 / shrink, heads: max(32/shrink, 1),
		groups: max(8/shrink, 1), blocks: max(16/shrink, 1),
		words: 128256 / shrink,
	}

	l.dim = l.hidden / l.heads
	n, kv := l.tokens, l.groups*l.dim
	for m, shape := range map[*kernels.Mat][2]int{
		&l.x: {n, l.hidden}, &l.h: {n, l.hidden}, &l.q: {n, l.hidden}, &l.k: {n, kv}, &l.v: {n, kv},
		&l.o: {n, l.hidden}, &l.g: {n, l.inner},
		&l.u: {n, l.inner}, &l.logits: {n, l.words}, &l.lse: {n, l.heads}, &l.dx: {n, l.hidden}, &l.dq: {n, l.hidden},
		&l.dk: {n, kv},
		&l.dv: {n, kv}, &l.dg: {n, l.inner}, &l.du: {n, l.inner}, &l.norm: {1, l.hidden}, &l.a: {16, l.hidden},
		&l.b:   {l.hidden, 16},
		&l.low: {n, 16}, &l.da: {16, l.hidden}, &l.db: {l.hidden, 16},
	} {
		*m = random(t, d, kernels.F32, shape[0], shape[1])
	}

	for m, shape := range map[*kernels.Mat][2]int{
		&l.wq: {l.hidden, l.hidden}, &l.wk: {kv, l.hidden}, &l.wo: {l.hidden, l.hidden}, &l.wg: {l.inner, l.hidden},
		&l.wd:   {l.hidden, l.inner},
		&l.head: {l.words, l.hidden},
	} {
		*m = random(t, d, kernels.BF16, shape[0], shape[1])
	}

	return l
}

func (l *llama) attention() kernels.Attention {
	return kernels.Attention{
		Heads: l.heads, KVHeads: l.groups, HeadDim: l.dim,
		Scale: float32(1 / math.Sqrt(float64(l.dim))), LSE: l.lse,
	}
}

var fast = kernels.MatMul{Precision: kernels.Fast}

// forward is a forward pass, with the adapter if adapted.
func (l *llama) forward(adapted bool) {
	o := l.d.Ops()
	for range l.blocks {
		o.RMSNorm(l.h, l.x, l.norm, 1e-5, false)
		o.MatMulNT(l.q, l.h, l.wq, fast)

		if adapted {
			o.MatMulNT(l.low, l.h, l.a, fast)
			o.MatMulNT(l.q, l.low, l.b, kernels.MatMul{Accumulate: true})
		}

		o.MatMulNT(l.k, l.h, l.wk, fast)
		o.MatMulNT(l.v, l.h, l.wk, fast)
		o.Attention(l.o, l.q, l.k, l.v, l.attention())
		o.MatMulNT(l.h, l.o, l.wo, fast)
		o.Add(l.x, l.x, l.h, 1e-3)
		o.RMSNorm(l.h, l.x, l.norm, 1e-5, false)
		o.MatMulNT(l.g, l.h, l.wg, fast)
		o.MatMulNT(l.u, l.h, l.wg, fast)
		o.Gate(l.g, l.g, l.u, kernels.SiLU)
		o.MatMulNT(l.h, l.g, l.wd, fast)
		o.Add(l.x, l.x, l.h, 1e-3)
	}

	o.RMSNorm(l.h, l.x, l.norm, 1e-5, false)
	o.MatMulNT(l.logits, l.h, l.head, fast)
}

// step is a forward and a backward pass that trains the adapters.
func (l *llama) step(labels []int32) {
	o := l.d.Ops()
	l.forward(true)
	o.CrossEntropyBackward(l.logits, kernels.Mat{}, l.logits, labels, 1/float32(l.tokens))
	o.MatMulNN(l.dx, l.logits, l.head, fast)

	for range l.blocks {
		o.MatMulNN(l.dg, l.dx, l.wd, fast)
		o.GateBackward(l.dg, l.du, l.dg, l.g, l.u, kernels.SiLU)
		o.MatMulNN(l.h, l.dg, l.wg, fast)
		o.MatMulNN(l.h, l.du, l.wg, kernels.MatMul{Precision: kernels.Fast, Accumulate: true})
		o.RMSNormBackward(l.dx, kernels.Mat{}, l.h, l.x, l.norm, 1e-5, false)
		o.MatMulNN(l.h, l.dx, l.wo, fast)
		o.AttentionBackward(l.dq, l.dk, l.dv, l.h, l.q, l.k, l.v, l.o, l.attention())
		o.MatMulTN(l.db, l.dq, l.low, fast)
		o.MatMulNN(l.low, l.dq, l.b, fast)
		o.MatMulTN(l.da, l.low, l.x, fast)
		o.MatMulNN(l.h, l.dq, l.wq, fast)
		o.MatMulNN(l.h, l.dk, l.wk, kernels.MatMul{Precision: kernels.Fast, Accumulate: true})
		o.MatMulNN(l.h, l.dv, l.wk, kernels.MatMul{Precision: kernels.Fast, Accumulate: true})
		o.RMSNormBackward(l.dx, kernels.Mat{}, l.h, l.x, l.norm, 1e-5, false)
	}
}

// promised are the figures that promises are made about, by name; torch_check.py adds those against torch. What
// the machine cannot tell (no cuBLASLt, no clock) is left out.
func promised(t testing.TB, d *Device, r measured, shrink int) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	by := map[string]figure{}
	for _, f := range r.Figures {
		by[f.Name] = f
	}

	if hbm := peak(t, d); hbm > 0 {
		out["peak_gb_per_s"] = hbm
		out["score_mask_of_peak"] = by["Wanda score and row mask, BF16"].GBps / hbm
		out["merge_of_peak"] = by["Merge, linear of 3, BF16"].GBps / hbm
	}

	out["score_mask_of_copy"] = by["Wanda score and row mask, BF16"].OfCopy
	out["merge_of_copy"] = by["Merge, linear of 3, BF16"].OfCopy
	if own := by["MatMulNT BF16 weight, fast, own kernel"]; own.Milliseconds > 0 && d.lt.lib != nil {
		out["own_matmul_of_cublaslt"] = by["MatMulNT BF16 weight, fast"].Milliseconds / own.Milliseconds
	}

	out["attention_tflop_per_s"] = by["Attention"].TFLOPS
	out["gp_candidate_ms"] = by["GP candidate"].Milliseconds
	out["gp_first_candidate_ms"] = by["GP candidate, the first"].Milliseconds
	out["upload_gb_per_s"], out["upload_of_pinned"] = uploads(t, d, shrink)
	out["forward_1b_1024_tokens_ms"] = by["forward, 1B Llama, 1024 tokens"].Milliseconds
	out["lora_step_1b_1024_tokens_ms"] = by["LoRA step, 1B Llama, 1024 tokens"].Milliseconds

	return out
}
