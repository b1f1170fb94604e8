package optim

import (
	"testing"
	"time"

	"github.com/modelcompress/compress/kernels"
)

// BenchmarkApply is one step on 4 Mi values. The rate counts every value, gradient and state once for reading
// and once for writing where it is written; "of copy" is the share of what copying memory reaches in the same
// run, on as many threads.
func BenchmarkApply(b *testing.B) {
	const rows, cols = 2048, 2048
	for _, c := range []struct {
		name, of string
		d        kernels.DType
		bytes    int // per value
	}{
		{"adamw/F32", "adamw", kernels.F32, 4 * 7},
		{"adamw/BF16", "adamw", kernels.BF16, 4*7 + 2},
		{"sgd/F32", "sgd", kernels.F32, 4 * 5},
		{"lomo/F32", "lomo", kernels.F32, 4 * 3},
		{"lomo/BF16", "lomo", kernels.BF16, 4 + 2*2},
		{"adalomo/F32", "adalomo", kernels.F32, 4 * 6},
	} {
		b.Run(c.name, func(b *testing.B) {
			o, p := openAll(b, c.of, "1"), random(1, c.d, rows, cols)
			apply(b, o, p, 1)

			from, to := make([]float32, 2*rows*cols), make([]float32, 2*rows*cols)
			step, copying := time.Hour, time.Hour
			for b.Loop() {
				start := time.Now()
				apply(b, o, p, 1)
				step = min(step, time.Since(start))
				start = time.Now()
				copy(to, from)
				copying = min(copying, time.Since(start))
			}

			rate := float64(c.bytes) * rows * cols / step.Seconds()
			b.ReportMetric(rate/1e9, "GB/s")
			b.ReportMetric(rate*copying.Seconds()/float64(8*len(from)), "of-copy")
		})
	}
}
