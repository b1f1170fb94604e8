package cpu

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/kernels"
)

// BenchmarkMatMulTwins measures, turn by turn on one thread, the product of a layer's forward pass (NT) and the
// two of its backward pass, which have as many multiplications: the gradients of its input (NN) and of its
// weight (TN, both factors F32). Names are the weight's out×in, of 1024 tokens; times are the processor's, and
// the shortest count.
func BenchmarkMatMulTwins(b *testing.B) {
	for _, kind := range []struct {
		name string
		t    kernels.DType
		p    kernels.Precision
	}{
		{"f32", kernels.F32, kernels.Exact},
		{"bf16exact", kernels.BF16, kernels.Exact},
		{"bf16fast", kernels.BF16, kernels.Fast},
	} {
		for _, s := range [][2]int{{512, 512}, {256, 512}, {1408, 512}, {4096, 512}, {512, 1408}} {
			b.Run(fmt.Sprintf("%s/%dx%d", kind.name, s[0], s[1]), func(b *testing.B) {
				benchmarkTwins(b, kind.t, kind.p, s[0], s[1])
			})
		}
	}
}

func benchmarkTwins(b *testing.B, t kernels.DType, p kernels.Precision, out, in int) {
	const tokens = 1024
	float := func(rows, cols int) kernels.Mat { return repeating(kernels.F32, rows, cols) }
	x := float(tokens, in)
	y := float(tokens, out)
	dx := float(tokens, in)

	dy := float(tokens, out)
	dw := float(out, in)
	w := repeating(t, out, in)
	d, o := deviceWith(detect(""), 1), kernels.MatMul{Precision: p}
	products := []func(){
		func() { d.ops.MatMulNT(y, x, w, o) },
		func() { d.ops.MatMulNN(dx, dy, w, o) },
		func() { d.ops.MatMulTN(dw, dy, x, o) },
	}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	best := []time.Duration{time.Hour, time.Hour, time.Hour}
	for b.Loop() {
		for i, f := range products {
			start := threadTime(b)
			f()
			best[i] = min(best[i], threadTime(b)-start)
		}
	}

	for i, name := range []string{"NT-ms", "NN-ms", "TN-ms"} {
		b.ReportMetric(1e3*best[i].Seconds(), name)
	}

	b.ReportMetric((best[1]+best[2]).Seconds()/best[0].Seconds(), "backward/forward")
}

// threadTime is the processor time of the calling thread.
func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}
