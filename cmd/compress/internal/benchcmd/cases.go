package benchcmd

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/modelcompress/compress/kernels"
)

// mats allocates random matrices; the first failure is kept in err.
type mats struct {
	dev   kernels.Device
	rnd   *rand.Rand
	rings map[string]func() kernels.Mat
	err   error
}

func newMats(dev kernels.Device) *mats {
	return &mats{dev: dev, rnd: rand.New(rand.NewPCG(1, 2)), rings: map[string]func() kernels.Mat{}}
}

// mat is a matrix of normal numbers.
func (b *mats) mat(d kernels.DType, rows, cols int) kernels.Mat {
	x := b.zero(kernels.F32, rows, cols)
	if b.err != nil {
		return x
	}

	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = float32(b.rnd.NormFloat64())
	}

	b.err = b.dev.Upload(x.Buf, 0, kernels.WrapF32(values).Bytes())
	if d == kernels.F32 || b.err != nil {
		return x
	}

	y := b.zero(d, rows, cols)
	if b.err == nil {
		b.dev.Ops().Convert(y, x)
		x.Buf.Free()
	}

	return y
}

func (b *mats) zero(d kernels.DType, rows, cols int) kernels.Mat {
	if b.err != nil {
		return kernels.Mat{}
	}
	buf, err := b.dev.Alloc(d, rows*cols)
	if b.err = err; err != nil {
		return kernels.Mat{}
	}
	return kernels.MatOf(buf, rows, cols)
}

// ringBytes is how much memory a case walks through where its time is that of memory: more than the caches hold.
const ringBytes = 1 << 29

// ring is several matrices of normal numbers, together larger than the caches; next gives them in turn. Cases
// of one type and shape share them.
func (b *mats) ring(d kernels.DType, rows, cols int) (next func() kernels.Mat) {
	key := fmt.Sprint(d, rows, cols)
	if next := b.rings[key]; next != nil {
		return next
	}

	list := []kernels.Mat{b.mat(d, rows, cols)}
	for size := rows * cols * d.Size(); b.err == nil && len(list)*size < ringBytes; {
		c := b.zero(d, rows, cols)
		if b.err == nil {
			b.dev.Ops().Convert(c, list[0])
		}
		list = append(list, c)
	}

	i := 0
	b.rings[key] = func() kernels.Mat {
		i = (i + 1) % len(list)
		return list[i]
	}
	return b.rings[key]
}

// do wraps an operation that cannot fail.
func do(f func()) func() error { return func() error { f(); return nil } }

// kernelCases are the operations that forward and backward passes spend their time in.
func kernelCases(_ context.Context, dev kernels.Device, _ *bed, _ Options) ([]timed, error) {
	b, ops := newMats(dev), dev.Ops()
	var cases []timed
	for _, s := range []struct{ m, n, k int }{{512, 2048, 2048}, {64, 2048, 2048}, {1, 4096, 4096}, {8, 4096, 4096}} {
		cases = append(cases, productCases(b, ops, s.m, s.n, s.k)...)
	}
	cases = append(cases, gradientCases(b, ops)...)
	cases = append(cases, packedCases(b, ops)...)
	cases = append(cases, quantisedCases(b, ops)...)
	cases = append(cases, layerCases(b, ops)...)
	return append(cases, lossCases(b, ops)...), b.err
}

// productCases are x[m,k]·w[n,k]ᵀ by types and precisions. Weights of a few rows come from memory.
func productCases(b *mats, ops *kernels.Ops, m, n, k int) (cases []timed) {
	x, y := b.mat(kernels.F32, m, k), b.zero(kernels.F32, m, n)
	for _, t := range []struct {
		d kernels.DType
		p kernels.Precision
	}{{kernels.F32, kernels.Exact}, {kernels.BF16, kernels.Exact}, {kernels.BF16, kernels.Fast}} {
		next := b.ring(t.d, n, k)
		if m >= 16 {
			w := next()
			next = func() kernels.Mat { return w }
		}

		cases = append(cases, timed{
			name:  fmt.Sprintf("matmul %dx%dx%d %s %s", m, n, k, t.d, t.p),
			flops: product(m, n, k), bytes: float64(n*k*t.d.Size() + 4*m*(n+k)), half: t.d == kernels.BF16,
			run: do(func() { ops.MatMulNT(y, x, next(), kernels.MatMul{Precision: t.p}) }),
		})
	}

	return cases
}

// product counts the operations of a matrix product.
func product(m, n, k int) float64 { return 2 * float64(m) * float64(n) * float64(k) }

// gradientCases are the two products of a backward pass: dy·w and dyᵀ·x.
func gradientCases(b *mats, ops *kernels.Ops) (cases []timed) {
	const m, n, k = 512, 2048, 2048
	dy := b.mat(kernels.F32, m, n)

	dx := b.zero(kernels.F32, m, k)
	x := b.mat(kernels.F32, m, k)
	dw := b.zero(kernels.F32, n, k)
	for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
		w, p := b.ring(d, n, k)(), kernels.Exact
		if d == kernels.BF16 {
			p = kernels.Fast
		}

		cases = append(
			cases,
			timed{
				name: fmt.Sprintf("matmul dy·w %dx%dx%d %s %s", m, k, n, d, p), flops: product(m, n, k),
				bytes: float64(n*k*d.Size() + 4*m*(n+k)), half: p == kernels.Fast,
				run: do(func() { ops.MatMulNN(dx, dy, w, kernels.MatMul{Precision: p}) }),
			},
			timed{
				name: fmt.Sprintf("matmul dyT·x %dx%dx%d F32 %s", n, k, m, p), flops: product(m, n, k),
				bytes: float64(4*n*k + 4*m*(n+k)), half: p == kernels.Fast,
				run: do(func() { ops.MatMulTN(dw, dy, x, kernels.MatMul{Precision: p}) }),
			},
		)
	}

	return cases
}

// packedCases multiply by a weight of 60 % zeros that is packed as a bitmask; its bytes are those that are packed.
func packedCases(b *mats, ops *kernels.Ops) (cases []timed) {
	const n = 4096
	if b.err != nil || !b.dev.Info().Host {
		return nil
	}

	mask, stored := kernels.NewHost(kernels.U8, n*n/8), 0
	for i := range mask.U8() {
		for bit := range 8 {
			if b.rnd.Float64() < 0.4 {
				mask.U8()[i] |= 1 << bit
				stored++
			}
		}
	}

	w, err := kernels.NewSparse(n, n, mask, b.mat(kernels.BF16, 1, stored).Buf, nil)
	if err != nil {
		b.err = err
		return nil
	}

	for _, m := range []int{1, 16} {
		x, y := b.mat(kernels.F32, m, n), b.zero(kernels.F32, m, n)
		cases = append(cases, timed{
			name: fmt.Sprintf("sparse matmul %dx%dx%d BF16 fast", m, n, n), flops: 2 * float64(m*stored),
			bytes: float64(w.SizeBytes() + int64(8*m*n)), half: true,
			run: do(func() { ops.MatMulSparse(y, x, w, kernels.MatMul{Precision: kernels.Fast}) }),
		})
	}

	return cases
}

// layerCases are the operations between the products.
func layerCases(b *mats, ops *kernels.Ops) []timed {
	const rows, cols, heads, dim, length = 1024, 4096, 8, 64, 1024
	x := b.mat(kernels.F32, rows, cols)
	y := b.zero(kernels.F32, rows, cols)
	w := b.mat(kernels.F32, 1, cols)

	dy, dw := b.mat(kernels.F32, rows, cols), b.zero(kernels.F32, 1, cols)
	qkv := func() kernels.Mat { return b.mat(kernels.F32, length, heads*dim) }
	q := qkv()
	k := qkv()
	v := qkv()

	dout := qkv()
	o := b.zero(kernels.F32, length, heads*dim)
	dq := qkv()

	dk := qkv()
	dv := qkv()
	half, dup := b.zero(kernels.BF16, rows, cols), b.zero(kernels.F32, rows, cols)
	a := kernels.Attention{
		Heads: heads, KVHeads: heads, HeadDim: dim, Scale: 0.125,
		LSE: b.zero(kernels.F32, length, heads),
	}
	scores := 2 * float64(heads*dim) * length * (length + 1) / 2 // operations of one product over the visible pairs
	traffic := float64(4 * rows * cols)                          // of one matrix, read or written

	return []timed{
		{
			name: "attention 1024 tokens 8x64", flops: 2 * scores, bytes: 4 * 4 * length * heads * dim,
			run: do(func() { ops.Attention(o, q, k, v, a) }),
		},
		{
			name: "attention backward 1024 tokens 8x64", flops: 5 * scores, bytes: 8 * 4 * length * heads * dim,
			run: do(func() { ops.AttentionBackward(dq, dk, dv, dout, q, k, v, o, a) }),
		},
		{name: "rmsnorm 1024x4096", bytes: 2 * traffic, run: do(func() { ops.RMSNorm(y, x, w, 1e-5, false) })},
		{name: "rmsnorm backward 1024x4096", bytes: 4 * traffic, run: do(func() {
			ops.RMSNormBackward(y, dw, dy, x, w,
				1e-5, false)
		})},
		{name: "layernorm 1024x4096", bytes: 2 * traffic, run: do(func() { ops.LayerNorm(y, x, w, w, 1e-5) })},
		{name: "silu gate 1024x4096", bytes: 3 * traffic, run: do(func() { ops.Gate(y, x, dy, kernels.SiLU) })},
		{name: "silu gate backward 1024x4096", bytes: 5 * traffic, run: do(func() {
			ops.GateBackward(y, dup, dy, x, x,
				kernels.SiLU)
		})},
		{name: "softmax 1024x4096", bytes: 2 * traffic, run: do(func() { ops.Softmax(y, x) })},
		{name: "convert f32 to bf16 1024x4096", bytes: traffic * 3 / 2, run: do(func() { ops.Convert(half, x) })},
	}
}

// lossCases are the cross-entropy over a vocabulary, and its gradient.
func lossCases(b *mats, ops *kernels.Ops) []timed {
	const rows, vocab = 256, 32000
	logits := b.mat(kernels.F32, rows, vocab)
	grad := b.zero(kernels.F32, rows, vocab)
	loss := b.zero(kernels.F64, 1, rows)
	labels := make([]int32, rows)
	for i := range labels {
		labels[i] = int32(i * 113 % vocab)
	}

	traffic := float64(4 * rows * vocab)
	return []timed{
		{name: "cross-entropy 256x32000", bytes: traffic, run: do(func() { ops.CrossEntropy(loss, logits, labels) })},
		{
			name: "cross-entropy backward 256x32000", bytes: 2 * traffic,
			run: do(func() { ops.CrossEntropyBackward(grad, loss, logits, labels, 1) }),
		},
	}
}
