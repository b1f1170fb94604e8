package cpu

import (
	"fmt"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// BenchmarkAttentionRow is the attention of one token behind others, as in generation: SmolLM2-135M's heads, and those
// of a model of 7 billion parameters. Keys and values are read once: MB/s is their rate.
func BenchmarkAttentionRow(b *testing.B) {
	for _, x := range []struct{ heads, kv, dim int }{{9, 3, 64}, {32, 8, 128}} {
		for _, n := range []int{512, 8192} {
			b.Run(fmt.Sprintf("%d/%d/%d/%d", x.heads, x.kv, x.dim, n), func(b *testing.B) {
				d := New(Options{Threads: 1})
				defer d.Close()
				mat := func(rows, cols int) kernels.Mat {
					data := make([]float32, rows*cols)
					for i := range data {
						data[i] = float32(i%37)/37 - .5
					}
					return kernels.MatOf(kernels.WrapF32(data), rows, cols)
				}
				q, dst := mat(1, x.heads*x.dim), mat(1, x.heads*x.dim)
				k, v := mat(n, x.kv*x.dim), mat(n, x.kv*x.dim)

				b.SetBytes(int64(8 * n * x.kv * x.dim))
				for b.Loop() {
					d.ops.Attention(dst, q, k, v, kernels.Attention{
						Heads: x.heads, KVHeads: x.kv, HeadDim: x.dim, Scale: .125, Pos: n - 1,
					})
				}
			})
		}
	}
}
