//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"math"
	"os"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
	"github.com/modelcompress/compress/kernels/ref"
)

// flashCase is a shape of attention that runs on tensor cores.
type flashCase struct {
	tq, pos, heads, kv, dim, pad, window int
	softcap                              float32
}

// attend computes attention on the device and on the reference backend and compares results and LSE.
func (c flashCase) attend(t *testing.T, d *cuda.Device, spoil func(k, v []float32)) {
	t.Helper()
	stride, tk := c.dim+c.pad, c.pos+c.tq+3
	q := floats(1, c.tq*c.heads*stride)
	k := floats(2, tk*c.kv*stride)
	v := floats(3, tk*c.kv*stride)
	spoil(k, v)
	a := kernels.Attention{
		Heads: c.heads, KVHeads: c.kv, HeadDim: c.dim, QHeadStride: stride, KVHeadStride: stride, Pos: c.pos,
		Window: c.window,
		Scale:  0.5, Softcap: c.softcap,
	}

	mat := func(s []float32, rows int) kernels.Mat { return kernels.MatOf(kernels.WrapF32(s), rows, len(s)/rows) }
	want, wantLSE := make([]float32, c.tq*c.heads*c.dim), make([]float32, c.tq*c.heads)
	a.LSE = mat(wantLSE, c.tq)
	ref.New().Ops().Attention(mat(want, c.tq), mat(q, c.tq), mat(k, tk), mat(v, tk), a)

	place := func(s []float32, rows int) kernels.Mat { return alloc(t, d, rows, len(s)/rows, kernelBytes(s)) }
	out := place(make([]float32, len(want)), c.tq)
	a.LSE = place(make([]float32, len(wantLSE)), c.tq)
	d.Ops().Attention(out, place(q, c.tq), place(k, tk), place(v, tk), a)
	c.compare(t, "result", read(t, d, out), want)
	c.compare(t, "LSE", read(t, d, a.LSE), wantLSE)
	if err := d.Ops().Sync(); err != nil {
		t.Error(err)
	}
}

// compare allows for a score, a sum of up to 128 products below 1, and so its weight relatively, to be off by
// some roundings. On a device it may be more, since tensor cores cut off what the host build rounds: every
// product that is added moves a sum towards zero by up to an ulp, 1.9e-5 of a score in the worst model of them.
func (c flashCase) compare(t *testing.T, what string, got, want []float32) {
	t.Helper()
	most := 1e-5
	if os.Getenv("COMPRESS_CUDA_TESTS") != "" {
		most = 5e-5
	}

	for i, x := range got {
		w := want[i]
		if x == w || x != x && w != w || math.Abs(float64(x-w)) <= most {
			continue
		}
		t.Errorf("%+v: %s %d is %v, want %v", c, what, i, x, w)
		return
	}
}

// TestFlash compares tensor-core attention with the reference backend over head sizes, groups, windows and caps.
func TestFlash(t *testing.T) {
	d := open(t, "")
	for _, c := range []flashCase{
		{tq: 17, heads: 1, kv: 1, dim: 8},
		{tq: 64, heads: 4, kv: 2, dim: 64, pad: 8},
		{tq: 65, pos: 95, heads: 2, kv: 1, dim: 128, window: 70, softcap: 20},
		{tq: 40, pos: 31, heads: 3, kv: 3, dim: 72, window: 1},
		{tq: 130, pos: 7, heads: 2, kv: 2, dim: 120, window: 33},
	} {
		c.attend(t, d, func(k, v []float32) {})
	}
}

// TestFlashInRounds: where the memory for packed keys and values is short, heads are done one after the other.
func TestFlashInRounds(t *testing.T) {
	d := open(t, "memory=8388608")
	c := flashCase{tq: 30, pos: 1200, heads: 6, kv: 3, dim: 128, window: 1000}
	c.attend(t, d, func(k, v []float32) {})
}

// TestFlashNotFinite: NaN and infinities reach the queries that see them, and no other.
func TestFlashNotFinite(t *testing.T) {
	d := open(t, "")
	c := flashCase{tq: 70, pos: 40, heads: 2, kv: 1, dim: 16, window: 50}
	at := func(row, ch int) int { return row*c.dim + ch }
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for what, spoil := range map[string]func(k, v []float32){
		"key -∞, seen by many":      func(k, v []float32) { k[at(60, 3)] = -inf },
		"key NaN, the last":         func(k, v []float32) { k[at(109, 0)] = nan },
		"key of both signs":         func(k, v []float32) { k[at(70, 1)], k[at(70, 2)] = inf, -inf },
		"value NaN behind the mask": func(k, v []float32) { v[at(108, 5)], v[at(111, 5)] = nan, nan },
		"values ∞ and -∞":           func(k, v []float32) { v[at(50, 7)], v[at(90, 7)] = inf, -inf },
	} {
		t.Run(what, func(t *testing.T) { c.attend(t, d, spoil) })
	}
}
