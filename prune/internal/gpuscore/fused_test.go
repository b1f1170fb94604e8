//go:build linux && (amd64 || arm64)

package gpuscore

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest/standin"
	"github.com/modelcompress/compress/prune/internal/score"
)

const rows, cols = 37, 210

// inputs are random weights and statistics in host memory.
func inputs(seed uint64) gp.Inputs {
	r := rand.New(rand.NewPCG(seed, 5))
	w, g := kernels.NewHost(kernels.BF16, rows*cols), kernels.NewHost(kernels.F16, rows*cols)
	for i := range w.U16() {
		w.U16()[i], g.U16()[i] = kernels.ToBF16(float32(r.NormFloat64()/8)),
			kernels.ToF16(float32(math.Abs(r.NormFloat64())))
	}

	vector := func() []float32 {
		v := make([]float32, cols)
		for i := range v {
			v[i] = float32(math.Abs(r.NormFloat64())) + 0.01
		}
		return v
	}

	return gp.Inputs{
		W: kernels.MatOf(w, rows, cols), G: kernels.MatOf(g, rows, cols), X: vector(), Mean: vector(),
		Var: vector(), Hess: vector(), Inv: vector(),
	}
}

// onDevice has the weights on the device.
func onDevice(t *testing.T, dev kernels.Device, in gp.Inputs) gp.Inputs {
	t.Helper()
	b, err := dev.Alloc(in.W.DType(), in.W.Len())
	if err == nil {
		err = dev.Upload(b, 0, in.W.Buf.Bytes())
	}
	if err != nil {
		t.Fatal(err)
	}

	in.W = kernels.MatOf(b, in.W.Rows, in.W.Cols)
	return in
}

// choices are ways to choose by scores.
var choices = map[string]func(ops *kernels.Ops, mask kernels.Mat, s kernels.Score){
	"rows":  func(ops *kernels.Ops, mask kernels.Mat, s kernels.Score) { ops.SelectRows(mask, s, cols/2) },
	"layer": func(ops *kernels.Ops, mask kernels.Mat, s kernels.Score) { ops.SelectAll(mask, s, rows*cols/2) },
	"2:4":   func(ops *kernels.Ops, mask kernels.Mat, s kernels.Score) { ops.SelectNM(mask, s, 2, 4) },
}

// TestMasksAreTheHosts compares masks with those of the host: where every operation is rounded as there they
// are the same, elsewhere no more weights differ than were counted as near ties, which are few.
func TestMasksAreTheHosts(t *testing.T) {
	dev, cpu := standin.Open(t), cpu.New(cpu.Options{Threads: 2})
	for text, exact := range map[string]bool{
		"W": true, "W * sqrt(X)": true, "W * sqrt(X) + W * G": true, "abs(W*W) * mms(G)": true,
		"min(W, G) - X * W": true, "pdiv(G, Xv) + max(W, Hi)": true,
		"log(W) + exp(G)": false, "tanh(W * X) * zsn(G)": false, "W / G": false,
		"(rnorm(W) + cnorm(W)) * sqrt(sqrt(X))": false,
		"W * Wr1 + Wc2 * G":                     false, "zsn(W * mms(X)) + H": false, "rnorm(X) + Wr2 * Wc1 * W": false,
		"mms(log(X)) * W": false,
	} {
		e, err := gp.Parse(text)
		if err != nil {
			t.Fatal(err)
		}

		p, err := gp.Compile(e)
		if err != nil {
			t.Fatal(err)
		}

		in := inputs(7)
		want := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
		if err := p.Eval(want, in, gp.Exec{}); err != nil {
			t.Fatal(err)
		}

		s, err := New(dev, p, onDevice(t, dev, in))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}

		if s.Exact != exact {
			t.Errorf("%s: exact is %v", text, s.Exact)
		}

		compare(t, text, dev, cpu, s, want)
		s.Free()
	}

	if f := device.Fallbacks(dev); len(f) != 0 {
		t.Errorf("left to the host: %v", f)
	}
}

// compare looks at masks in all ways to choose, and at the range.
func compare(t *testing.T, text string, dev, cpu kernels.Device, s *Scores, want kernels.Mat) {
	t.Helper()
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range want.Buf.F32() {
		lo, hi = min(lo, float64(v)), max(hi, float64(v))
	}

	if a, b, err := s.Range(); err != nil || math.Abs(float64(a)-lo) > 1e-5*(1+math.Abs(lo)) ||
		math.Abs(float64(b)-(hi-lo)) > 1e-5*(1+hi-lo) {
		t.Errorf("%s: range %g, %g (%v), want %g, %g", text, a, b, err, lo, hi-lo)
	}

	for name, choose := range choices {
		buf, err := dev.Alloc(kernels.U8, rows*cols)
		if err != nil {
			t.Fatal(err)
		}

		mask, wanted := kernels.MatOf(buf, rows, cols),
			kernels.MatOf(kernels.NewHost(kernels.U8, rows*cols), rows, cols)
		choose(cpu.Ops(), wanted, kernels.Score{X: want, Raw: true})
		near, err := s.Choose(mask, func(mask kernels.Mat, s kernels.Score) { choose(dev.Ops(), mask, s) })
		if err != nil {
			t.Fatal(err)
		}

		got := bits(t, dev, mask)
		differ := int64(0)
		for i, b := range got {
			if b != wanted.Buf.U8()[i] {
				differ++
			}
		}

		if differ > near || near > rows*cols/50 {
			t.Errorf("%s, %s: %d weights differ, %d near ties", text, name, differ, near)
		}
		if name != "rows" {
			continue
		}
		if err := s.Select(mask, cols/2); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bits(t, dev, mask), got) {
			t.Errorf("%s: the fused kernel chooses otherwise", text)
		}
	}
}

func bits(t *testing.T, dev kernels.Device, m kernels.Mat) []byte {
	t.Helper()
	raw, err := hostmat.Bytes(dev, m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestRIA compares relative importance with the host's.
func TestRIA(t *testing.T) {
	dev, cpu := standin.Open(t), cpu.New(cpu.Options{Threads: 2})
	in := inputs(9)
	for j := range cols { // a neuron without weights, whose scores are 0
		in.W.Buf.U16()[3*cols+j] = 0
	}

	want := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
	cpu.Ops().Convert(want, in.W)
	score.Relative(want, in.X, 2)
	s, err := RIA(dev, onDevice(t, dev, in).W, in.X)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Free()

	compare(t, "ria", dev, cpu, s, want)
}

// TestNearTies: pairs closer than the bound are counted once for each of the two, others not.
func TestNearTies(t *testing.T) {
	dev := standin.Open(t)
	x := []float32{1, 2, 3, 4, 5, 5.000001, 7, 8, -5.000001, -5, 1, 2, 3, 4, 6, 7}
	b, err := dev.Alloc(kernels.F32, len(x))
	if err == nil {
		err = dev.Upload(b, 0, kernels.WrapF32(x).Bytes())
	}
	if err != nil {
		t.Fatal(err)
	}

	m, err := dev.Alloc(kernels.U8, len(x))
	if err != nil {
		t.Fatal(err)
	}

	scores, mask := kernels.MatOf(b, 2, 8), kernels.MatOf(m, 2, 8)
	for drop, want := range map[int]int64{5: 2, 1: 2, 3: 0} {
		again := func(mask kernels.Mat, s kernels.Score) { dev.Ops().SelectRows(mask, s, drop) }
		again(mask, kernels.Score{X: scores, Raw: true})
		if got, err := NearTies(dev, scores, mask, again); got != want || err != nil {
			t.Errorf("%d go: %d near ties (%v), want %d", drop, got, err, want)
		}
	}
}

// TestHost: what a device cannot is left to the host.
func TestHost(t *testing.T) {
	dev := standin.Open(t)
	program := func(text string) *gp.Program {
		e, err := gp.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		p, err := gp.Compile(e)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}

	in := onDevice(t, dev, inputs(1))
	if _, err := New(cpu.New(cpu.Options{}), program("W"), in); !errors.Is(err, ErrHost) {
		t.Errorf("on the host: %v", err)
	}

	in.G.Buf.U16()[5] |= 0x8000
	if _, err := New(dev, program("W * G"), in); !errors.Is(err, ErrHost) {
		t.Errorf("a negative gradient, of which formulas read the magnitude: %v", err)
	}

	long := "W"
	for range 300 {
		long = "log(" + long + ")"
		if len(long) > 60*4 {
			break
		}
	}

	if s, err := New(dev, program(long), in); err != nil {
		t.Errorf("60 operations: %v", err)
	} else {
		s.Free()
	}
}
