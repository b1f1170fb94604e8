package dtype_test

import (
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/safetensors"
)

// BenchmarkElements measures conversions of what lies in the cache, in bytes of float32.
func BenchmarkElements(b *testing.B) {
	const n = 1 << 14
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i-n/2) / 3
	}

	for _, kind := range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16} {
		data := make([]byte, n*dtype.Size(kind))
		for name, run := range map[string]func() error{
			"encode": func() error { return dtype.Encode(data, x, kind) },
			"decode": func() error { return dtype.Decode(x, data, kind) },
		} {
			b.Run(kind.String()+"/"+name, func(b *testing.B) {
				b.SetBytes(4 * n)
				for b.Loop() {
					if err := run(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
