package cpu_test

import (
	"fmt"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/kerneltest"
)

// levels are the settings of COMPRESS_CPU_DISABLE from everything the processor has down to portable Go, and
// the operations that such a level is about; none means all.
var levels = []struct {
	name, disable string
	only          []string
}{
	{"all", "", nil},
	{"no-amx", "amx", products},
	{"no-avx512bf16", "avx512bf16", products},
	{"no-avx512", "avx512", nil},
	{"portable", "avx2", nil},
}

var products = []string{"MatMulNT", "MatMulNN", "MatMulTN", "MatMulSparse"}

// open opens the processor with some instruction sets switched off.
func open(tb testing.TB, disable string, threads int) kernels.Device {
	tb.Setenv("COMPRESS_CPU_DISABLE", disable)
	return cpu.New(cpu.Options{Threads: threads})
}

func TestConformance(t *testing.T) {
	for _, l := range levels {
		t.Run(l.name, func(t *testing.T) { kerneltest.Run(t, open(t, l.disable, 2), l.only...) })
	}
}

// TestThreadsDoNotMatter compares one thread with two and five.
func TestThreadsDoNotMatter(t *testing.T) {
	for _, l := range levels {
		t.Run(l.name, func(t *testing.T) {
			one := open(t, l.disable, 1)
			kerneltest.Same(t, one, open(t, l.disable, 5), l.only...)
			kerneltest.Same(t, one, open(t, l.disable, 2), append([]string{"Attention", "RMSNorm"}, products...)...)
		})
	}
}

func BenchmarkOps(b *testing.B) {
	for _, l := range levels {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", l.name, threads), func(b *testing.B) {
				kerneltest.Benchmark(b,
					open(b, l.disable, threads))
			})
		}
	}
}
