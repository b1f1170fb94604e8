package optim

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"pgregory.net/rapid"
)

var all = map[string]string{
	"adamw":   `{"WeightDecay":0.1,"Master":true,"Threads":%}`,
	"sgd":     `{"Momentum":0.9,"Nesterov":true,"WeightDecay":0.01,"Master":true,"Threads":%}`,
	"lomo":    `{"ClipValue":0.5,"WeightDecay":0.01,"Threads":%}`,
	"adalomo": `{"ClipValue":2,"WeightDecay":0.01,"Threads":%}`,
}

func openAll(t testing.TB, name, threads string) Optimizer {
	return open(t, name, json.RawMessage(strings.Replace(all[name], "%", threads, 1)))
}

// random is a parameter with normal values and gradients.
func random(seed uint64, d kernels.DType, rows, cols int) Param {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := Param{
		Name: "w", Value: kernels.MatOf(kernels.NewHost(d, rows*cols), rows, cols),
		Grad: kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols),
	}

	for i := range rows * cols {
		p.Grad.Buf.F32()[i] = float32(rng.NormFloat64())
		v := float32(rng.NormFloat64())
		switch d {
		case kernels.F32:
			p.Value.Buf.F32()[i] = v
		case kernels.BF16:
			p.Value.Buf.U16()[i] = kernels.ToBF16(v)
		default:
			p.Value.Buf.U16()[i] = kernels.ToF16(v)
		}
	}

	return p
}

func apply(t testing.TB, o Optimizer, p Param, steps int) {
	t.Helper()
	for i := range steps {
		if err := o.Apply(p, Step{LR: 0.01 * float64(i+1), GradScale: 0.75}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestThreads: same bits for any number of threads.
func TestThreads(t *testing.T) {
	for name := range all {
		for _, d := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
			one, many := random(1, d, 37, 2749), random(1, d, 37, 2749)
			apply(t, openAll(t, name, "1"), one, 3)
			apply(t, openAll(t, name, "5"), many, 3)
			if !slices.Equal(one.Value.Buf.Bytes(), many.Value.Buf.Bytes()) {
				t.Errorf("%s %s: threads show in the result", name, d)
			}
		}
	}
}

// TestResume: state saved and restored continues with the same bits, and steps do not depend on what else is trained.
func TestResume(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"adamw", "sgd", "lomo", "adalomo"}).Draw(t, "name")
		d := rapid.SampledFrom([]kernels.DType{kernels.F32, kernels.BF16, kernels.F16}).Draw(t, "type")
		rows, cols := rapid.IntRange(1, 9).Draw(t, "rows"), rapid.IntRange(1, 40).Draw(t, "cols")

		before, after := rapid.IntRange(1, 4).Draw(t, "before"), rapid.IntRange(1, 4).Draw(t, "after")
		ft := fakeT{t}
		straight, broken := random(3, d, rows, cols), random(3, d, rows, cols)

		a, b := ft.open(name), ft.open(name)
		ft.apply(a, straight, before)
		ft.apply(b, broken, before)
		saved := map[string][]float32{}
		for k, v := range b.State() {
			saved[k] = slices.Clone(v)
		}

		ft.apply(b, random(3, d, rows, cols), 1) // must not reach into what was saved
		b = ft.open(name)
		if err := b.Restore(saved); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(saved, b.State()) {
			t.Fatal("state changes on its way through Restore")
		}

		ft.apply(a, straight, after)
		ft.apply(b, broken, after)

		if !slices.Equal(straight.Value.Buf.Bytes(), broken.Value.Buf.Bytes()) ||
			!reflect.DeepEqual(a.State(), b.State()) {
			t.Fatal("resumed training differs")
		}
	})
}

type fakeT struct{ *rapid.T }

func (f fakeT) open(name string) Optimizer {
	var o Optimizer
	switch name {
	case "adamw":
		o, _ = NewAdamW(AdamWOptions{WeightDecay: 0.1, Master: true})
	case "sgd":
		o, _ = NewSGD(SGDOptions{Momentum: 0.9, Dampening: 0.1, Master: true})
	case "lomo":
		o, _ = NewLOMO(LOMOOptions{})
	default:
		o, _ = NewAdaLomo(AdaLomoOptions{})
	}

	return o
}

func (f fakeT) apply(o Optimizer, p Param, steps int) {
	for i := range steps {
		if err := o.Apply(p, Step{LR: 0.01 * float64(i+1)}); err != nil {
			f.Fatal(err)
		}
	}
}

// TestPortable: the kernel and the plain loop give the same bits, for every length around the vector width.
func TestPortable(t *testing.T) {
	for n := range 70 {
		a, b := random(5, kernels.F32, 1, n), random(5, kernels.F32, 1, n)
		k := adamStep{
			scale: 0.5, decay: 0.999, rise1: 0.1, beta2: 0.999, rise2: 0.001, root2: 0.3, eps: 1e-8,
			step: -0.01,
		}
		ma := make([]float32, n+1)

		va := make([]float32, n+1)
		mb := make([]float32, n)
		vb := make([]float32, n)
		for range 3 {
			k.run(a.Value.Buf.F32(), ma[:n], va[:n], a.grad())
			k.portable(b.Value.Buf.F32(), mb, vb, b.grad())
		}

		if !slices.Equal(a.Value.Buf.F32(), b.Value.Buf.F32()) || !slices.Equal(ma[:n], mb) ||
			!slices.Equal(va[:n], vb) || ma[n] != 0 || va[n] != 0 {
			t.Fatalf("%d values: kernel and loop differ", n)
		}
	}
}

// TestMaster: steps below half a unit of bfloat16 add up with a master copy and vanish without.
func TestMaster(t *testing.T) {
	for _, master := range []bool{true, false} {
		o, err := NewSGD(SGDOptions{Master: master})
		if err != nil {
			t.Fatal(err)
		}

		p := random(1, kernels.BF16, 1, 1)
		p.Value.Buf.U16()[0], p.Grad.Buf.F32()[0] = kernels.ToBF16(1), 1

		for range 100 {
			if err := o.Apply(p, Step{LR: 1e-3}); err != nil {
				t.Fatal(err)
			}
		}

		want := map[bool]float32{true: 0.9, false: 1}[master]
		// a unit of bfloat16 below 1
		if got := kernels.FromBF16(p.Value.Buf.U16()[0]); math.Abs(float64(got-want)) > 1.0/256 {
			t.Errorf("master %v: %g, want %g", master, got, want)
		}
	}
}

func TestOptions(t *testing.T) {
	p := random(1, kernels.F32, 2, 8)
	q := random(1, kernels.F32, 2, 8)
	q.NoDecay, q.LRScale = true, 0.5
	o, _ := NewSGD(SGDOptions{WeightDecay: 0.5})
	plain, _ := NewSGD(SGDOptions{})
	if err := errors.Join(o.Apply(q, Step{LR: 0.1}), plain.Apply(p, Step{LR: 0.05})); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.Value.Buf.F32(), q.Value.Buf.F32()) {
		t.Error("NoDecay and LRScale are not followed")
	}
}

func TestFaults(t *testing.T) {
	good := random(1, kernels.F32, 4, 4)
	o := openAll(t, "adamw", "1")
	apply(t, o, good, 1)

	for what, change := range map[string]func(p *Param) error{
		"shape": func(p *Param) error { p.Grad = p.Grad.Reshape(2, 8); return ErrShape },
		"type":  func(p *Param) error { p.Grad = random(1, kernels.BF16, 4, 4).Value; return ErrShape },
		"gaps": func(p *Param) error {
			p.Value, p.Grad = p.Value.ColRange(0, 3),
				p.Grad.ColRange(0, 3)
			return ErrShape
		},
		"absent": func(p *Param) error { p.Grad = kernels.Mat{}; return ErrShape },
		"int": func(p *Param) error {
			p.Value = kernels.MatOf(kernels.NewHost(kernels.I32, 16), 4,
				4)
			return ErrShape
		},
		"device": func(p *Param) error {
			p.Value = kernels.MatOf(kernels.NewDevice(kernels.F32, 16, 64, nil), 4, 4)
			return ErrShape
		},
		"other size": func(p *Param) error { *p = random(1, kernels.F32, 4, 5); return ErrState },
	} {
		p := good
		want := change(&p)
		if err := o.Apply(p, Step{LR: 1}); !errors.Is(err, want) || !strings.Contains(err.Error(), "w") {
			t.Errorf("%s: error %v, want one that wraps %v", what, err, want)
		}
	}

	for what, s := range map[string]map[string][]float32{
		"no kind":      {"w": {1}},
		"unknown kind": {"w.step": {1}, "w.momentum": {1}},
		"no step":      {"w.exp_avg": {1}},
		"half a step":  {"w.step": {1.5}},
		"NaN":          {"w.step": {float32(math.NaN())}},
	} {
		if err := o.Restore(s); !errors.Is(err, ErrState) {
			t.Errorf("%s: error %v", what, err)
		}
	}

	if err := o.Restore(map[string][]float32{}); err != nil {
		t.Fatal(err)
	}
	if err := o.Apply(good, Step{LR: 1}); !errors.Is(err, ErrState) {
		t.Errorf("parameter that restored state lacks: error %v", err)
	}

	bad := random(1, kernels.F32, 4, 4)
	bad.Grad.Buf.F32()[7] = float32(math.NaN())
	if err := openAll(t, "adalomo", "1").Apply(bad, Step{LR: 1}); !errors.Is(err, ErrNonFinite) {
		t.Errorf("NaN gradient: error %v", err)
	}
	if _, _, err := Clip([]Param{good, bad}, 1, 1); !errors.Is(err, ErrNonFinite) {
		t.Errorf("norm of a NaN gradient: error %v", err)
	}
	if _, _, err := Clip(nil, math.NaN(), 1); err == nil {
		t.Error("NaN bound is taken")
	}
}

func TestBadOptions(t *testing.T) {
	nan := math.NaN()
	_, a := NewAdamW(AdamWOptions{Beta1: 1, Beta2: -0.5, Eps: nan, WeightDecay: -1})
	_, b := NewSGD(SGDOptions{Nesterov: true})
	_, c := NewLOMO(LOMOOptions{ClipValue: -1})

	_, d := NewAdaLomo(AdaLomoOptions{Threshold: nan})
	_, e := NewSchedule("square", 0, 1)
	_, f := NewSchedule("linear", -1, 1)
	for i, err := range []error{a, b, c, d, e, f} {
		if err == nil {
			t.Errorf("case %d: no error", i)
		}
	}

	if n := strings.Count(a.Error(), "want"); n != 4 {
		t.Errorf("%d faults reported, want all 4: %v", n, a)
	}
}

// TestDescent: every optimiser finds the minimum of a convex function.
func TestDescent(t *testing.T) {
	for name, lr := range map[string]float64{"adamw": 0.05, "sgd": 0.02, "lomo": 0.1, "adalomo": 0.05} {
		o := map[string]Optimizer{"adamw": &AdamW{}, "sgd": &SGD{}}[name]
		var err error
		switch name {
		case "adamw":
			o, err = NewAdamW(AdamWOptions{})
		case "sgd":
			o, err = NewSGD(SGDOptions{Momentum: 0.9})
		case "lomo":
			o, err = NewLOMO(LOMOOptions{})
		case "adalomo":
			o, err = NewAdaLomo(AdaLomoOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}

		p, target := random(1, kernels.F32, 6, 10), random(2, kernels.F32, 6, 10).Value.Buf.F32()
		loss := 0.0
		for step := range 400 {
			loss = 0
			for i, v := range p.Value.Buf.F32() {
				p.Grad.Buf.F32()[i] = v - target[i]
				loss += float64((v - target[i]) * (v - target[i]))
			}

			if err := o.Apply(p, Step{LR: lr * Cosine(10, 400)(step)}); err != nil {
				t.Fatal(err)
			}
		}

		if loss > 1e-2 { // from about 120
			t.Errorf("%s: loss %g after 400 steps", name, loss)
		}
	}
}

func TestClipValue(t *testing.T) {
	top := float32(math.Inf(1))

	for _, c := range []struct{ bound, in, want float64 }{
		{0.5, 0.25, 0.25},
		{0.5, 0.5, 0.5},
		{0.5, 0.75, 0.5},
		{0.5, -3, -0.5},
		{0.5, math.Inf(-1), -0.5},
		{0, 1e30, 1e30},
		{0, math.Inf(1), math.Inf(1)},
		{2, 0, 0},
		{1e300, 7, 7},
	} {
		if got := newClip(c.bound, Step{GradScale: 2}).apply(float32(c.in)); got != 2*float32(c.want) {
			t.Errorf("%g clipped to %g and doubled: %g", c.in, c.bound, got)
		}
	}

	for _, bound := range []float64{0, 0.5} {
		if got := newClip(bound, Step{}).apply(top - top); !math.IsNaN(float64(got)) {
			t.Errorf("NaN becomes %g", got)
		}
	}
}
