//go:build linux && (amd64 || arm64)

package cuda

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// figure is one measured operation.
type figure struct {
	Name         string  `json:"name"`
	Milliseconds float64 `json:"ms"` // median of the repeats, by events
	GBps         float64 `json:"gb_per_s,omitempty"`
	// of the bandwidth of a copy within the device, in the same run
	OfCopy float64 `json:"fraction_of_copy,omitempty"`
	TFLOPS float64 `json:"tflop_per_s,omitempty"`
}

// measured is the report.
type measured struct {
	Device  kernels.Info       `json:"device"`
	Figures []figure           `json:"figures"`
	Masks   []maskCheck        `json:"masks"`
	Lines   map[string]float64 `json:"lines"` // by name what promises are made about; see promised

	Conformance *conformance `json:"conformance,omitempty"` // what TestMeasureDevice finds beside the report
	Complete    bool         `json:"complete"`              // nothing stopped the measurements
}

// stopwatch times what is launched on the compute stream.
type stopwatch struct {
	t        testing.TB
	d        *Device
	from, to uintptr
	repeats  int
	lead     func() // work before the first event, nil for none: see leadBy
}

func newStopwatch(t testing.TB, d *Device, repeats int) *stopwatch {
	t.Helper()
	s := &stopwatch{t: t, d: d, repeats: repeats}
	d.enter()
	defer d.leave()

	for _, e := range []*uintptr{&s.from, &s.to} {
		if err := d.check(cuEventCreate, uintptr(unsafe.Pointer(&d.out[0])), 0); err != nil {
			t.Fatal(err)
		}
		*e = d.out[0]
		d.memory.all = append(d.memory.all, *e)
	}

	return s
}

func (s *stopwatch) record(e uintptr) {
	s.d.enter()
	defer s.d.leave()
	s.d.do(cuEventRecord, e, s.d.compute)
}

// leadBy puts the sums of squares of a matrix before what is timed. While the device reads it the host launches
// the rest, so that no gap between launches is measured; and the caches hold the matrix afterwards, not the
// operands of the last repeat.
func (s *stopwatch) leadBy(rows, cols int) {
	s.t.Helper()
	acc, err := s.d.Alloc(kernels.F64, cols)
	if err != nil {
		s.t.Fatal(err)
	}
	x := random(s.t, s.d, kernels.F32, rows, cols)
	s.lead = func() { s.d.ops.ColSumSq(kernels.MatOf(acc, 1, cols), x) }
}

// time is the median time of f in milliseconds, after two calls that are not timed.
func (s *stopwatch) time(f func()) float64 {
	s.t.Helper()
	var list []float64
	for i := range s.repeats + 2 {
		if s.lead != nil {
			s.lead()
		}

		s.record(s.from)
		f()
		s.record(s.to)
		if err := s.d.sync(); err != nil {
			s.t.Fatal(err)
		}

		s.d.enter()
		ms := new(float32)
		err := s.d.check(cuEventElapsedTime, uintptr(unsafe.Pointer(ms)), s.from, s.to)
		s.d.leave()
		if err != nil {
			s.t.Fatal(err)
		}

		if i >= 2 {
			list = append(list, float64(*ms))
		}
	}

	slices.Sort(list)
	return list[len(list)/2]
}

// random is a matrix of values around zero, different in every element.
func random(t testing.TB, d *Device, dt kernels.DType, rows, cols int) kernels.Mat {
	t.Helper()
	host := kernels.NewHost(kernels.F32, rows*cols)
	state := uint32(12345)
	for i := range host.F32() {
		state = state*1664525 + 1013904223
		host.F32()[i] = float32(int32(state)) / (1 << 31)
	}

	wide := place(t, d, host, rows, cols)
	if dt == kernels.F32 {
		return wide
	}

	b, err := d.Alloc(dt, rows*cols)
	if err != nil {
		t.Fatal(err)
	}

	m := kernels.MatOf(b, rows, cols)
	d.ops.Convert(m, wide)
	wide.Buf.Free()

	return m
}

func place(t testing.TB, d *Device, host *kernels.Buffer, rows, cols int) kernels.Mat {
	t.Helper()
	b, err := d.Alloc(host.DType, host.Len)
	if err == nil {
		err = d.Upload(b, 0, host.Bytes())
	}
	if err != nil {
		t.Fatal(err)
	}
	return kernels.MatOf(b, rows, cols)
}

// measure times the operations at the sizes of a 7B model, divided by shrink; what it found until a failure
// stops it is in r.
func measure(t testing.TB, d *Device, shrink, repeats int, r *measured) {
	t.Helper()
	s, o := newStopwatch(t, d, repeats), d.Ops()
	r.Device = d.Info()

	rows := 4096 / shrink
	cols := 11008 / shrink / 8 * 8
	tokens := 2048 / shrink
	s.leadBy(2*rows, cols)
	copied := 0.0
	bandwidth := func(name string, bytes int, f func()) {
		ms := s.time(f)
		gb := float64(bytes) / ms / 1e6
		if copied == 0 {
			copied = gb
		}
		r.Figures = append(r.Figures, figure{Name: name, Milliseconds: ms, GBps: gb, OfCopy: gb / copied})
	}

	rate := func(name string, flops float64, f func()) {
		ms := s.time(f)
		r.Figures = append(r.Figures, figure{Name: name, Milliseconds: ms, TFLOPS: flops / ms / 1e9})
	}

	n := rows * cols
	a := random(t, d, kernels.F32, rows, cols)
	b := random(t, d, kernels.F32, rows, cols)
	sum := random(t, d, kernels.F32, rows, cols)
	bandwidth("copy", 8*n, func() {
		d.operation("copy", func() { d.do(cuMemcpyDtoDAsync, d.of(sum).p, d.of(a).p, uintptr(4*n), d.compute) }, sum, a)
	})
	bandwidth("Add, F32", 12*n, func() { o.Add(sum, a, b, 0.5) })
	bandwidth("Gate SiLU, F32", 12*n, func() { o.Gate(sum, a, b, kernels.SiLU) })

	w := random(t, d, kernels.BF16, rows, cols)
	bandwidth("Convert BF16 to F32", 6*n, func() { o.Convert(sum, w) })
	norm := random(t, d, kernels.F32, 1, cols)
	mask, err := d.Alloc(kernels.U8, n)
	if err != nil {
		t.Fatal(err)
	}

	m, score := kernels.MatOf(mask, rows, cols), kernels.Score{X: w, Col: norm}
	bandwidth("Wanda score and row mask, BF16", 3*n, func() { o.SelectRows(m, score, cols/2) })
	bandwidth("score and 2:4 mask, BF16", 3*n, func() { o.SelectNM(m, score, 2, 4) })
	bandwidth("score and mask over the matrix, BF16", 3*n, func() { o.SelectAll(m, score, n/2) })
	bandwidth("ApplyMask, BF16", 3*n, func() { o.ApplyMask(w, m) })

	x := a.Reshape(n/cols, cols).RowRange(0, min(tokens, rows))
	acc, err := d.Alloc(kernels.F64, cols)
	if err != nil {
		t.Fatal(err)
	}

	bandwidth("ColSumSq", 4*x.Len(), func() { o.ColSumSq(kernels.MatOf(acc, 1, cols), x) })
	bandwidth("RMSNorm", 8*x.Len(), func() { o.RMSNorm(sum.RowRange(0, x.Rows), x, norm, 1e-5, false) })
	w = random(t, d, kernels.BF16, rows, cols)
	y := random(t, d, kernels.F32, tokens, rows)
	flops := 2 * float64(x.Rows) * float64(n)
	y = y.RowRange(0, x.Rows)
	rate("MatMulNT BF16 weight, fast", flops, func() { o.MatMulNT(y, x, w, kernels.MatMul{Precision: kernels.Fast}) })

	vendor := d.lt.lib
	d.lt.lib = nil
	rate("MatMulNT BF16 weight, fast, own kernel", flops, func() {
		o.MatMulNT(y, x, w,
			kernels.MatMul{Precision: kernels.Fast})
	})

	d.lt.lib = vendor
	rate("MatMulNT BF16 weight, exact", flops, func() { o.MatMulNT(y, x, w, kernels.MatMul{}) })
	rate("MatMulNT F32 weight, exact", flops, func() { o.MatMulNT(y, x, b, kernels.MatMul{}) })
	bandwidth("MatMulNT BF16 weight, one row", 2*n, func() {
		o.MatMulNT(y.RowRange(0, 1), x.RowRange(0, 1), w,
			kernels.MatMul{})
	})

	heads, dim := max(32/shrink, 1), 128
	q := random(t, d, kernels.F32, tokens, heads*dim)
	k := random(t, d, kernels.F32, tokens, heads*dim)
	v := random(t, d, kernels.F32, tokens, heads*dim)

	out := random(t, d, kernels.F32, tokens, heads*dim)
	lse := random(t, d, kernels.F32, tokens, heads)
	at := kernels.Attention{
		Heads: heads, KVHeads: heads, HeadDim: dim, Scale: float32(1 / math.Sqrt(float64(dim))),
		LSE: lse,
	}
	pairs := float64(tokens) * float64(tokens+1) / 2 * float64(heads*dim)
	rate("Attention", 4*pairs, func() { o.Attention(out, q, k, v, at) })

	dq := random(t, d, kernels.F32, tokens, heads*dim)
	dk := random(t, d, kernels.F32, tokens, heads*dim)
	dv := random(t, d, kernels.F32, tokens, heads*dim)
	rate("AttentionBackward", 10*pairs, func() { o.AttentionBackward(dq, dk, dv, out, q, k, v, out, at) })
	models := make([]kernels.Source, 3)
	for i := range models {
		models[i] = kernels.Source{M: random(t, d, kernels.BF16, rows, cols), Weight: 0.3}
	}

	merged := random(t, d, kernels.BF16, rows, cols)
	merge := func(a kernels.Arithmetic) {
		if err := d.Merge(merged, w, models, a); err != nil {
			t.Fatal(err)
		}
	}

	bandwidth("Merge, linear of 3, BF16", 10*n, func() { merge(kernels.Arithmetic{Lambda: 1}) })
	for i := range models {
		models[i].Keep = n / 5
	}

	bandwidth("Merge, TIES of 3, BF16", 10*n,
		func() { merge(kernels.Arithmetic{Lambda: 1, Consensus: true, Normalise: true}) })
	candidate, first := candidates(t, d, w, norm, m, min(256, 4*repeats))
	r.Figures = append(r.Figures, figure{Name: "GP candidate", Milliseconds: candidate},
		figure{Name: "GP candidate, the first", Milliseconds: first})

	r.Masks = compareMasks(t, d, max(1024/shrink, 8), 4096/shrink)
	r.Lines = promised(t, d, *r, shrink)
	l := newLlama(t, d, shrink)
	r.Figures = append(r.Figures,
		figure{Name: "forward, 1B Llama, 1024 tokens", Milliseconds: s.time(func() { l.forward(false) })})
	labels := make([]int32, l.tokens)
	r.Figures = append(r.Figures, figure{Name: "LoRA step, 1B Llama, 1024 tokens", Milliseconds: s.time(func() {
		l.step(
			labels)
	})})

	r.Lines = promised(t, d, *r, shrink)
	r.Complete = true
}

// TestMeasureDevice writes what the first device reaches to the file that COMPRESS_CUDA_REPORT names, with what
// the tests said whose output lies beside it, named like it with .log behind.
func TestMeasureDevice(t *testing.T) {
	file := os.Getenv("COMPRESS_CUDA_REPORT")
	if file == "" {
		t.Skip("COMPRESS_CUDA_REPORT names no file for the report")
	}

	d, err := Open(0, Options{})
	if err != nil {
		t.Fatal(err) // a report was asked for
	}
	defer d.Close()

	shrink, repeats := 1, 20
	if s := os.Getenv("COMPRESS_CUDA_SHRINK"); s != "" && s != "1" {
		if shrink, err = strconv.Atoi(s); err != nil || shrink < 1 || shrink > 64 {
			t.Fatalf("COMPRESS_CUDA_SHRINK=%s: want 1 to 64", s)
		}
		repeats = 1
	}

	r := measured{Conformance: readConformance(t, file+".log")}
	defer func() {
		text, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(file, append(text, '\n'), 0o666)
		}
		if err != nil {
			t.Error(err)
		}
	}()

	measure(t, d, shrink, repeats, &r)
}
