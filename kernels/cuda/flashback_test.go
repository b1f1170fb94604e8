//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"math"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
	"github.com/modelcompress/compress/kernels/ref"
)

// back computes attention's gradients on the device and on the reference backend and compares them. What lies
// between heads stays.
func (c flashCase) back(t *testing.T, d *cuda.Device, kernel string) {
	t.Helper()
	stride, tk := c.dim+c.pad, c.pos+c.tq+3
	q := floats(1, c.tq*c.heads*stride)
	k := floats(2, tk*c.kv*stride)
	v := floats(3, tk*c.kv*stride)
	dout := floats(4, c.tq*c.heads*c.dim)
	a := kernels.Attention{
		Heads: c.heads, KVHeads: c.kv, HeadDim: c.dim, QHeadStride: stride, KVHeadStride: stride, Pos: c.pos,
		Window: c.window,
		Scale:  float32(1 / math.Sqrt(float64(c.dim))), Softcap: c.softcap,
	}

	mat := func(s []float32, rows int) kernels.Mat { return kernels.MatOf(kernels.WrapF32(s), rows, len(s)/rows) }
	out, lse := make([]float32, len(dout)), make([]float32, c.tq*c.heads)
	a.LSE = mat(lse, c.tq)
	o := ref.New().Ops()
	o.Attention(mat(out, c.tq), mat(q, c.tq), mat(k, tk), mat(v, tk), a)
	untouched := func(n int) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = 7
		}
		return s
	}

	dq := untouched(len(q))
	dk := untouched(len(k))
	dv := untouched(len(v))
	place := func(s []float32, rows int) kernels.Mat { return alloc(t, d, rows, len(s)/rows, kernelBytes(s)) }
	got := [3]kernels.Mat{place(dq, c.tq), place(dk, tk), place(dv, tk)}

	o.AttentionBackward(mat(dq, c.tq), mat(dk, tk), mat(dv, tk), mat(dout, c.tq), mat(q, c.tq), mat(k, tk), mat(v, tk),
		mat(out, c.tq), a)
	a.LSE = place(lse, c.tq)
	run := func() [3][]float32 {
		d.Ops().AttentionBackward(got[0], got[1], got[2], place(dout, c.tq), place(q, c.tq), place(k, tk), place(v, tk),
			place(out, c.tq), a)
		return [3][]float32{read(t, d, got[0]), read(t, d, got[1]), read(t, d, got[2])}
	}

	results := run()
	if !d.Loaded("flashback." + kernel) {
		t.Errorf("%+v: %s was not used", c, kernel)
	}

	again := run()
	for i, want := range [][]float32{dq, dk, dv} {
		// a weight has the relative error of a score, a sum of up to 128 products below 1, and so has every
		// term of a sum over up to 300 of them, some of which cancel
		for j, w := range want {
			if x := results[i][j]; math.Abs(float64(x-w)) > 2e-5 || x != again[i][j] {
				t.Errorf("%+v: gradient %d, element %d is %v and %v, want %v", c, i, j, x, again[i][j], w)
				return
			}
		}
	}
}

// TestFlashBack compares tensor-core gradients with the reference backend over head sizes, groups, windows,
// caps and odd lengths, twice for equal bits.
func TestFlashBack(t *testing.T) {
	d := open(t, "")
	for _, c := range []flashCase{
		{tq: 17, heads: 1, kv: 1, dim: 8},
		{tq: 64, heads: 4, kv: 2, dim: 64, pad: 8},
		{tq: 65, pos: 95, heads: 2, kv: 1, dim: 128, window: 70, softcap: 20},
		{tq: 41, pos: 31, heads: 3, kv: 3, dim: 80, window: 1},
		{tq: 131, pos: 7, heads: 4, kv: 1, dim: 96, window: 33},
		{tq: 99, pos: 0, heads: 2, kv: 2, dim: 56, window: math.MaxInt32},
	} {
		c.back(t, d, map[bool]string{true: "flash_dkv_64", false: "flash_dkv_128"}[c.dim <= 64])
	}

	if d.Loaded("attention.attention_dq_64") || d.Loaded("attention.attention_dq_128") {
		t.Error("the kernels without tensor cores were used")
	}

	flashCase{tq: 20, heads: 2, kv: 1, dim: 12}.back(t, d, "flash_dq_64") // served by the others
	if !d.Loaded("attention.attention_dq_64") {
		t.Error("heads of 12 channels have no kernel")
	}
}

// TestFlashBackInRounds: where the memory for planes is short, heads are done one after the other.
func TestFlashBackInRounds(t *testing.T) {
	d := open(t, "memory=8388608")
	flashCase{tq: 40, pos: 260, heads: 6, kv: 3, dim: 128, window: 200}.back(t, d, "flash_dq_128")
}
