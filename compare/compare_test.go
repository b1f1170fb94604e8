package compare

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
)

// shapes are rows×out×in: the square shape of the target and the layers of a 21.9M-parameter Llama.
var shapes = [][3]int{
	{512, 2048, 2048},
	{1024, 512, 512},
	{1024, 256, 512},
	{1024, 1408, 512},
	{1024, 4096, 512},
	{1024, 512, 1408},
	{64, 2048, 2048},
	{16, 2048, 2048},
}

// levels switches instruction sets off, as COMPRESS_CPU_DISABLE does.
var levels = []struct{ name, disable string }{{"all", ""}, {"no amx", "amx"}, {"avx2", "avx512"}}

// operands are one product in every type.
type operands struct {
	m, n, k   int
	dst, x, w kernels.Mat
	wBF16     kernels.Mat
	check     []float32
}

func newOperands(s [3]int) *operands {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(rows, cols int) kernels.Mat {
		m := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
		for i := range m.Buf.F32() {
			m.Buf.F32()[i] = float32(rng.NormFloat64())
		}
		return m
	}

	o := &operands{m: s[0], n: s[1], k: s[2], dst: random(s[0], s[1]), x: random(s[0], s[2]), w: random(s[1], s[2])}
	o.wBF16 = kernels.MatOf(kernels.NewHost(kernels.BF16, s[1]*s[2]), s[1], s[2])
	for i, v := range o.w.Buf.F32() {
		o.wBF16.Buf.U16()[i] = kernels.ToBF16(v)
	}

	o.check = make([]float32, o.m*o.n)
	return o
}

// Turns of a comparison. OpenBLAS's threads keep a processor busy for a while after every call, so each turn
// begins with a pause and a call that does not count.
const (
	turns     = 4
	turnTime  = 60 * time.Millisecond
	pauseTime = 40 * time.Millisecond
)

// interleave gives every function a few turns and returns the time that one in ten of its calls beat: of the
// clock, or of the processor where one thread works, which other programs on the machine disturb less but which
// is not exact for every call.
func interleave(threads int, fs ...func()) []time.Duration {
	now := func() time.Duration { return time.Since(begin) }
	if threads == 1 {
		now = processorTime
	}

	times := make([][]time.Duration, len(fs))
	for range turns {
		for i, f := range fs {
			time.Sleep(pauseTime)
			f()

			for turn := time.Now(); time.Since(turn) < turnTime; {
				start := now()
				f()
				times[i] = append(times[i], now()-start)
			}
		}
	}

	fast := make([]time.Duration, len(fs))
	for i, t := range times {
		slices.Sort(t)
		fast[i] = t[len(t)/10]
	}

	return fast
}

var begin = time.Now()

// processorTime is what the process has used of its processors.
func processorTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// TestAgainstOpenBLAS prints how our products compare with OpenBLAS's, in one process, turn by turn. It fails
// only if results differ; times are for the reader.
func TestAgainstOpenBLAS(t *testing.T) {
	fmt.Println(openBLAS())

	for _, threads := range []int{1, 2} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("threads=%d/%s", threads, level.name), func(t *testing.T) {
				setThreads(threads)
				t.Setenv("COMPRESS_CPU_DISABLE", level.disable)
				d := cpu.New(cpu.Options{Threads: threads})
				fmt.Printf("\n%d threads, %s: %v, peak f32 %.0f GFLOP/s\n", threads, level.name, d.Info().Features,
					d.PeakF32(threads)/1e9)
				table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
				fmt.Fprintln(table, "shape\tOpenBLAS\tf32\tof OpenBLAS\tbf16 exact\tbf16 fast\tof f32\t")
				for _, s := range shapes {
					compareShape(t, table, d, s)
				}

				table.Flush()
			})
		}
	}
}

func compareShape(t *testing.T, table *tabwriter.Writer, d *cpu.Device, s [3]int) {
	o := newOperands(s)
	nt := d.Ops().MatMulNT
	flop := 2 * float64(o.m) * float64(o.n) * float64(o.k)
	fast := interleave(d.Info().Threads,
		func() { sgemmNT(o.check, o.x.Buf.F32(), o.w.Buf.F32(), o.m, o.n, o.k) },
		func() { nt(o.dst, o.x, o.w, kernels.MatMul{}) },
		func() { nt(o.dst, o.x, o.wBF16, kernels.MatMul{}) },
		func() { nt(o.dst, o.x, o.wBF16, kernels.MatMul{Precision: kernels.Fast}) })

	rate := func(i int) float64 { return flop / fast[i].Seconds() / 1e9 }
	fmt.Fprintf(table, "%d×%d×%d\t%.0f\t%.0f\t%.2f\t%.0f\t%.0f\t%.2f\t\n", s[0], s[1], s[2], rate(0), rate(1),
		rate(1)/rate(0), rate(2), rate(3), rate(3)/rate(1))
	nt(o.dst, o.x, o.w, kernels.MatMul{})

	for i, v := range o.dst.Buf.F32() {
		if e := v - o.check[i]; e > 1e-3 || e < -1e-3 {
			t.Fatalf("%v: element %d is %v, OpenBLAS has %v", s, i, v, o.check[i])
		}
	}
}

// TestBackwardAgainstOpenBLAS compares the products of a layer's backward pass, with shapes as rows×out×in of
// the forward pass: the gradient of its input, dy·W, and that of its weight, dyᵀ·x. It fails only if results
// differ.
func TestBackwardAgainstOpenBLAS(t *testing.T) {
	setThreads(1)
	d := cpu.New(cpu.Options{Threads: 1})
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "shape\tdy·W: OpenBLAS\tf32\tof OpenBLAS\tbf16 exact\tbf16 fast\tdyᵀ·x: "+
		"OpenBLAS\tf32\tof OpenBLAS\t")
	for _, s := range shapes[1:6] {
		compareBackward(t, table, d, s)
	}
	table.Flush()
}

func compareBackward(t *testing.T, table *tabwriter.Writer, d *cpu.Device, s [3]int) {
	o := newOperands(s)
	dy := o.dst
	float := func(rows, cols int) kernels.Mat {
		return kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
	}
	dx := float(o.m, o.k)
	dw := float(o.n, o.k)
	dxCheck := float(o.m, o.k)

	dwCheck := float(o.n, o.k)
	nn, tn := d.Ops().MatMulNN, d.Ops().MatMulTN
	fast := interleave(1,
		func() { sgemmNN(dxCheck.Buf.F32(), dy.Buf.F32(), o.w.Buf.F32(), o.m, o.k, o.n) },
		func() { nn(dx, dy, o.w, kernels.MatMul{}) },
		func() { nn(dx, dy, o.wBF16, kernels.MatMul{}) },
		func() { nn(dx, dy, o.wBF16, kernels.MatMul{Precision: kernels.Fast}) },
		func() { sgemmTN(dwCheck.Buf.F32(), dy.Buf.F32(), o.x.Buf.F32(), o.n, o.k, o.m) },
		func() { tn(dw, dy, o.x, kernels.MatMul{}) })

	rate := func(i int) float64 { return 2 * float64(o.m) * float64(o.n) * float64(o.k) / fast[i].Seconds() / 1e9 }
	fmt.Fprintf(table, "%d×%d×%d\t%.0f\t%.0f\t%.2f\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t\n", s[0], s[1], s[2],
		rate(0), rate(1), rate(1)/rate(0), rate(2), rate(3), rate(4), rate(5), rate(5)/rate(4))
	nn(dx, dy, o.w, kernels.MatMul{})
	same(t, s, dx, dxCheck)
	same(t, s, dw, dwCheck)
}

func same(t *testing.T, s [3]int, got, want kernels.Mat) {
	t.Helper()
	for i, v := range got.Buf.F32() {
		if e := v - want.Buf.F32()[i]; e > 1e-3 || e < -1e-3 {
			t.Fatalf("%v: element %d is %v, OpenBLAS has %v", s, i, v, want.Buf.F32()[i])
		}
	}
}
