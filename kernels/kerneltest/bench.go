package kerneltest

import (
	"math"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// workload is one benchmark of an operation: what a call moves and computes, and how to make its operands on a device.
type workload struct {
	name  string
	bytes float64 // read and written, every operand once
	flops float64
	setup func(b bench) func(o *kernels.Ops)
}

// bench makes operands for a benchmark.
type bench struct {
	tb  testing.TB
	dev kernels.Device
	rng *rand.Rand
}

// mat is a dense matrix of uniform values.
func (b bench) mat(d kernels.DType, rows, cols int) kernels.Mat {
	host := kernels.NewHost(d, rows*cols)
	for i := range rows * cols {
		set(host, i, math.Abs(uniform(b.rng))) // U8 takes no negative values
		if d != kernels.U8 && b.rng.IntN(2) == 0 {
			set(host, i, -get(host, i))
		}
	}
	return b.upload(host, rows, cols)
}

func (b bench) upload(host *kernels.Buffer, rows, cols int) kernels.Mat {
	buf, err := b.dev.Alloc(host.DType, host.Len)
	if err == nil {
		err = b.dev.Upload(buf, 0, host.Bytes())
	}
	if err != nil {
		b.tb.Fatal(err)
	}
	return kernels.MatOf(buf, rows, cols)
}

// fill is a dense F32 matrix of one value.
func (b bench) fill(rows, cols int, v float64) kernels.Mat {
	host := kernels.NewHost(kernels.F32, rows*cols)
	for i := range host.Len {
		set(host, i, v)
	}
	return b.upload(host, rows, cols)
}

func (b bench) f32(rows, cols int) kernels.Mat { return b.mat(kernels.F32, rows, cols) }

// refTimes keeps how long the reference backend takes, for the repeated runs of one benchmark.
var refTimes sync.Map

// Benchmark times every operation of dev. It reports GB/s or GFLOP/s, and as "x-ref" how many times faster than
// the reference backend, measured once in the same run, the call was.
func Benchmark(b *testing.B, dev kernels.Device) {
	fields := reflect.TypeFor[kernels.Ops]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		list, ok := workloads[name]
		if !ok {
			b.Fatalf("package kerneltest has no benchmark for %s", name)
		}

		for _, w := range list {
			label := name
			if w.name != "" {
				label += "/" + w.name
			}
			b.Run(label, func(b *testing.B) { w.run(b, dev, label) })
		}
	}
}

func (w workload) run(b *testing.B, dev kernels.Device, label string) {
	call := w.setup(bench{b, dev, rand.New(rand.NewPCG(1, 2))})
	ops := dev.Ops()
	call(ops) // packs weights, warms caches
	if err := ops.Sync(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		call(ops)
	}
	if err := ops.Sync(); err != nil {
		b.Fatal(err)
	}

	ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	if w.bytes > 0 {
		b.ReportMetric(w.bytes/ns, "GB/s")
	}
	if w.flops > 0 {
		b.ReportMetric(w.flops/ns, "GFLOP/s")
	}
	if w.bytes+w.flops > 0 {
		b.ReportMetric(w.refTime(b, label)/ns, "x-ref")
	}
}

// refTime is the time of one call of the reference backend in nanoseconds.
func (w workload) refTime(b *testing.B, label string) float64 {
	if t, ok := refTimes.Load(label); ok {
		return t.(float64)
	}

	d := ref.New()
	call := w.setup(bench{b, d, rand.New(rand.NewPCG(1, 2))})
	start := time.Now()
	call(d.Ops())
	t := float64(time.Since(start).Nanoseconds())
	refTimes.Store(label, t)
	return t
}
