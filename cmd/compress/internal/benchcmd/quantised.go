package benchcmd

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
)

// quantisedBytes is the memory that weights in few bits lie in, one after the other: more than caches hold.
const quantisedBytes = 1 << 28

// quantisedGroup is how many columns share a scale in formats that leave it open.
const quantisedGroup = 128

// quantisedCases are products with weights in few bits: of a prompt, and of a single row, whose weight comes from
// memory.
func quantisedCases(b *mats, ops *kernels.Ops) (cases []timed) {
	memory := b.codes(quantisedBytes)
	for _, s := range []struct{ m, n, k int }{{512, 2048, 2048}, {1, 4096, 4096}} {
		x, y := b.mat(kernels.F32, s.m, s.k), b.zero(kernels.F32, s.m, s.n)
		for _, f := range []kernels.QuantFormat{
			kernels.Q8_0, kernels.Q4_0, kernels.Q5_0, kernels.Q4_K, kernels.Q6_K, kernels.Int4, kernels.Int8,
		} {
			next := b.quantised(memory, f, s.n, s.k)
			if b.err != nil {
				return nil
			}

			if s.m > 1 {
				w := next()
				next = func() kernels.Quantised { return w }
			}
			for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
				cases = append(cases, timed{
					name: fmt.Sprintf("matmul %dx%dx%d %s %s", s.m, s.n, s.k, f, p), flops: product(s.m, s.n, s.k),
					bytes: float64(next().SizeBytes() + int64(4*s.m*(s.n+s.k))), small: p == kernels.Fast,
					run: do(func() { ops.MatMulQuantised(y, x, next(), kernels.MatMul{Precision: p}) }),
				})
			}
		}
	}

	return cases
}

// codes is memory in which any two bytes are a float16 below 1/8, whatever is taken for a scale.
func (b *mats) codes(n int) kernels.Mat {
	m := b.zero(kernels.U8, 1, n)
	if b.err != nil {
		return m
	}

	part := make([]byte, 1<<20)
	for i := range part {
		part[i] = byte(b.rnd.Uint32()) & 0x2f
	}
	for at := 0; at < n && b.err == nil; at += len(part) {
		b.err = b.dev.Upload(m.Buf, at, part)
	}

	return m
}

// quantised gives weights in turn that lie in memory one after the other.
func (b *mats) quantised(memory kernels.Mat, f kernels.QuantFormat, rows, cols int) (next func() kernels.Quantised) {
	width := f.RowBytes(cols)
	w := kernels.Quantised{Format: f, Cols: cols}
	if f.Grouped() {
		w.Group = quantisedGroup
		w.Scales = b.mat(kernels.F32, rows, w.Groups())
	}

	i := 0
	return func() kernels.Quantised {
		i = (i + 1) % (quantisedBytes / (rows * width))
		w.Data = kernels.Mat{Buf: memory.Buf, Off: i * rows * width, Rows: rows, Cols: width, Stride: width}
		return w
	}
}
