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
	{"no-amx", "amx", append([]string{"MatMulQuantised"}, products...)},
	{"no-avx512bf16", "avx512bf16", products},
	{"no-avx512vnni", "avx512vnni", []string{"MatMulQuantised"}},
	{"no-vnni", "avx512vnni,avxvnni", []string{"MatMulQuantised"}},
	{"no-avx512", "avx512", nil},
	{"no-avx512-no-avxvnni", "avx512,avxvnni", []string{"MatMulQuantised"}},
	{"no-dotprod", "dotprod", []string{"MatMulQuantised"}},
	{"no-bf16", "bf16", products},
	{"portable", "avx2,neon", nil},
}

var products = []string{"MatMulNT", "MatMulNN", "MatMulTN", "MatMulSparse"}

// open opens the processor with some instruction sets switched off.
func open(tb testing.TB, disable string, threads int) kernels.Device {
	tb.Setenv("COMPRESS_CPU_DISABLE", disable)
	return cpu.New(cpu.Options{Threads: threads})
}

// TestConformance: every operation computes what the reference does under every setting, and gives the same bits for
// one, two and five threads.
func TestConformance(t *testing.T) {
	var subjects []kerneltest.Subject
	tested := map[string]bool{}
	for _, l := range levels {
		d := open(t, l.disable, 2)
		features := fmt.Sprint(d.Info().Features)
		if tested[features] {
			continue // the processor lacks what is switched off
		}

		tested[features] = true
		subjects = append(subjects, kerneltest.Subject{
			Name: l.name, Device: d, Only: l.only,
			Twins: []kernels.Device{open(t, l.disable, 1), open(t, l.disable, 5)},
		})
	}

	kerneltest.RunAll(t, subjects...)
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
