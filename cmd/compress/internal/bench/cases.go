package bench

import (
	"fmt"
	"math/rand/v2"

	"github.com/modelcompress/compress/kernels"
)

// mats allocates drawn matrices; the first failure is kept in err.
type mats struct {
	dev kernels.Device
	rnd *rand.Rand
	err error
}

func newMats(dev kernels.Device) *mats {
	return &mats{dev: dev, rnd: rand.New(rand.NewPCG(1, 2))}
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

// ring is several copies of a matrix, together larger than the caches; next gives them in turn.
func (b *mats) ring(w kernels.Mat) (next func() kernels.Mat) {
	list := []kernels.Mat{w}
	for size := w.Len() * w.DType().Size(); b.err == nil && len(list)*size < ringBytes; {
		c := b.zero(w.DType(), w.Rows, w.Cols)
		if b.err == nil {
			b.dev.Ops().Convert(c, w)
		}
		list = append(list, c)
	}
	i := 0
	return func() kernels.Mat {
		i = (i + 1) % len(list)
		return list[i]
	}
}

// do wraps an operation that cannot fail.
func do(f func()) func() error { return func() error { f(); return nil } }

// kernelCases are the operations that a forward pass spends its time in.
func kernelCases(dev kernels.Device) ([]timed, error) {
	b, ops := newMats(dev), dev.Ops()
	var cases []timed
	for _, s := range []struct{ m, n, k int }{{512, 2048, 2048}, {64, 2048, 2048}, {1, 4096, 4096}, {8, 4096, 4096}} {
		x, y := b.mat(kernels.F32, s.m, s.k), b.zero(kernels.F32, s.m, s.n)
		for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
			w := b.mat(d, s.n, s.k)
			next := func() kernels.Mat { return w }
			if s.m < 16 {
				next = b.ring(w)
			}
			for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
				if d == kernels.F32 && p == kernels.Fast {
					continue
				}
				cases = append(cases, timed{
					name:  fmt.Sprintf("matmul %dx%dx%d %s %s", s.m, s.n, s.k, d, p),
					flops: 2 * float64(s.m) * float64(s.n) * float64(s.k), bytes: float64(s.n*s.k*d.Size() + 4*s.m*(s.n+s.k)),
					run: do(func() { ops.MatMulNT(y, x, next(), kernels.MatMul{Precision: p}) }),
				})
			}
		}
	}
	return append(cases, layerCases(b, ops)...), b.err
}

// layerCases are the operations between the products.
func layerCases(b *mats, ops *kernels.Ops) []timed {
	const rows, cols, heads, dim, length = 1024, 4096, 8, 64, 1024
	x, y, w := b.mat(kernels.F32, rows, cols), b.zero(kernels.F32, rows, cols), b.mat(kernels.F32, 1, cols)
	q, k, v := b.mat(kernels.F32, length, heads*dim), b.mat(kernels.F32, length, heads*dim), b.mat(kernels.F32, length, heads*dim)
	o := b.zero(kernels.F32, length, heads*dim)
	half := b.zero(kernels.BF16, rows, cols)
	traffic := float64(2 * 4 * rows * cols)
	return []timed{
		{
			name: "attention 1024 tokens 8x64", flops: 2 * 2 * heads * dim * length * (length + 1) / 2, bytes: 4 * 4 * length * heads * dim,
			run: do(func() {
				ops.Attention(o, q, k, v, kernels.Attention{Heads: heads, KVHeads: heads, HeadDim: dim, Scale: 0.125})
			}),
		},
		{name: "rmsnorm 1024x4096", bytes: traffic, run: do(func() { ops.RMSNorm(y, x, w, 1e-5, false) })},
		{name: "silu gate 1024x4096", bytes: traffic * 3 / 2, run: do(func() { ops.Gate(y, x, x, kernels.SiLU) })},
		{name: "softmax 1024x4096", bytes: traffic, run: do(func() { ops.Softmax(y, x) })},
		{name: "convert f32 to bf16 1024x4096", bytes: traffic * 3 / 4, run: do(func() { ops.Convert(half, x) })},
	}
}

// pruneCases score and mask one large matrix.
func pruneCases(dev kernels.Device) ([]timed, error) {
	const n = 4096
	b, ops := newMats(dev), dev.Ops()
	col := b.mat(kernels.F32, 1, n)
	mask := b.zero(kernels.U8, n, n)
	var cases []timed
	for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
		w := b.ring(b.mat(d, n, n))
		read := float64(n * n * (d.Size() + 1))
		cases = append(cases,
			timed{name: fmt.Sprintf("wanda 50%% of every row %s", d), bytes: read, run: do(func() { ops.SelectRows(mask, kernels.Score{X: w(), Col: col}, n/2) })},
			timed{name: fmt.Sprintf("magnitude 50%% of the matrix %s", d), bytes: read, run: do(func() { ops.SelectAll(mask, kernels.Score{X: w()}, n*n/2) })},
			timed{name: fmt.Sprintf("wanda 2:4 %s", d), bytes: read, run: do(func() { ops.SelectNM(mask, kernels.Score{X: w(), Col: col}, 2, 4) })},
			timed{name: fmt.Sprintf("apply mask %s", d), bytes: read + float64(n*n*d.Size()), run: do(func() { ops.ApplyMask(w(), mask) })},
		)
	}
	x, acc := b.ring(b.mat(kernels.F32, n, n)), b.zero(kernels.F64, 1, n)
	cases = append(cases, timed{name: "column sums of squares", flops: 2 * n * n, bytes: 4 * n * n, run: do(func() { ops.ColSumSq(acc, x()) })})
	return cases, b.err
}
