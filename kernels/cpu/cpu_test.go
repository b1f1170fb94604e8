package cpu_test

import (
	"fmt"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/kerneltest"
)

// levels are the settings of COMPRESS_CPU_DISABLE from everything the processor has down to portable Go.
var levels = []struct{ name, disable string }{
	{"all", ""},
	{"no-amx", "amx"},
	{"no-avx512bf16", "avx512bf16"},
	{"no-avx512", "avx512"},
	{"portable", "avx2"},
}

// open opens the processor with some instruction sets switched off.
func open(tb testing.TB, disable string, threads int) kernels.Device {
	tb.Setenv("COMPRESS_CPU_DISABLE", disable)
	return cpu.New(cpu.Options{Threads: threads})
}

func TestConformance(t *testing.T) {
	for _, l := range levels {
		t.Run(l.name, func(t *testing.T) { kerneltest.Run(t, open(t, l.disable, 2)) })
	}
}

func TestThreadsDoNotMatter(t *testing.T) {
	for _, l := range levels {
		for _, threads := range []int{2, 5} {
			t.Run(l.name, func(t *testing.T) { kerneltest.Same(t, open(t, l.disable, 1), open(t, l.disable, threads)) })
		}
	}
}

func BenchmarkOps(b *testing.B) {
	for _, l := range levels {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", l.name, threads), func(b *testing.B) { kerneltest.Benchmark(b, open(b, l.disable, threads)) })
		}
	}
}
