package train

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/optim"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/lora/internal/delta"
	"github.com/modelcompress/compress/lora/internal/kinds"
)

// subject is what both kinds of training offer.
type subject interface {
	Step(ctx context.Context, step int, batches []batches.Batch, counted int, lr, clip float64) (
		loss, norm float64, err error)
	Eval(ctx context.Context, b batches.Batch) (sum float64, counted int, err error)
	Save(path string, progress any, best bool) error
	Restore(path string, best bool) error
}

// trainee is a subject with its values.
type trainee struct {
	subject
	values func() []float32
}

// model loads the package's smallest base.
func model(t *testing.T) *lm.Model {
	t.Helper()
	return base(t, "llama")
}

func base(t *testing.T, name string) *lm.Model {
	t.Helper()
	dev := device.Complete(cpu.New(cpu.Options{Threads: 2}))
	m, err := lm.Load(t.Context(), filepath.Join("..", "..", "testdata", "peft", "base-"+name), dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); dev.Close() })
	return m
}

func adamw(t *testing.T) optim.Optimizer {
	t.Helper()
	o, err := optim.NewAdamW(optim.AdamWOptions{Beta1: 0.9, Beta2: 0.999, WeightDecay: 0.1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// subjects makes one of each kind, always with the same start.
var subjects = map[string]func(t *testing.T) trainee{
	"adapter": func(t *testing.T) trainee {
		m := model(t)
		base, err := kinds.Of(m)
		if err != nil {
			t.Fatal(err)
		}

		a, err := kinds.New(adapter.Config{
			Kind: adapter.LoRA, Rank: 2, Alpha: 4, Dropout: 0.2, Targets: adapter.Match{All: true},
		}, base, 3)
		if err != nil {
			t.Fatal(err)
		}

		r, err := delta.Attach(m, a, delta.Options{Train: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Detach)

		return trainee{&Low{Model: m, Adapter: a, Runtime: r, Optim: adamw(t), Seed: 5}, func() (all []float32) {
			for _, p := range a.Trainable() {
				all = append(all, p.Data()...)
			}
			return all
		}}
	},
	"model":        func(t *testing.T) trainee { return whole(t, false) },
	"model, fused": func(t *testing.T) trainee { return whole(t, true) },
}

func whole(t *testing.T, fused bool) trainee { return wholeOf(t, model(t), fused) }

func wholeOf(t *testing.T, m *lm.Model, fused bool) trainee {
	f, err := NewFull(m, nil, !fused)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Free)
	f.Optim = adamw(t)
	f.Fused = fused

	return trainee{f, func() (all []float32) {
		for _, n := range m.Tensors() {
			v, err := m.Param(n)
			if err != nil {
				t.Fatal(err)
			}
			for i := range v.Rows {
				all = append(all, v.RowF32(i)...)
			}
		}
		return all
	}}
}

// data is a step of two sequences, of which all tokens after the first count.
func data() (list []batches.Batch, counted int) {
	ids := [][]int32{{1, 2, 3, 4, 5}, {6, 7, 8}}
	return []batches.Batch{{IDs: ids, Labels: ids}}, 4 + 2
}

// TestSubjects: steps learn; what is saved and restored goes on with the same bits, dropout included; the best values
// come back without the optimiser's state; a cancelled step leaves the values as they are.
func TestSubjects(t *testing.T) {
	for name, start := range subjects {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			list, counted := data()
			sum, n, err := s.Eval(t.Context(), list[0])
			if err != nil || n != counted {
				t.Fatalf("%d tokens count, %v", n, err)
			}

			step := func(s trainee, k int) float64 {
				t.Helper()
				loss, norm, err := s.Step(t.Context(), k, list, counted, 0.02, 1)
				if err != nil || !(norm > 0) {
					t.Fatalf("step %d: norm %g, %v", k, norm, err)
				}
				return loss
			}
			first := step(s, 0)
			if name != "adapter" && math.Abs(first-sum/float64(n)) > 1e-5 { // the adapter drops out
				t.Errorf("the loss of the first step is %g, evaluated %g", first, sum/float64(n))
			}

			path := Folder(t.TempDir()).State(1)
			if err := s.Save(path, steps{Step: 1}, false); err != nil {
				t.Fatal(err)
			}

			last := 0.0
			for k := 1; k < 6; k++ {
				last = step(s, k)
			}
			want := s.values()
			if !(last < first) {
				t.Errorf("loss %g → %g", first, last)
			}

			again := start(t)
			if err := again.Restore(path, false); err != nil {
				t.Fatal(err)
			}
			for k := 1; k < 6; k++ {
				step(again, k)
			}
			if !slices.Equal(want, again.values()) {
				t.Error("restored, the values are others")
			}

			best := Folder(t.TempDir()).Best()
			if err := again.Save(best, steps{}, true); err != nil {
				t.Fatal(err)
			}
			other := start(t)
			if err := other.Restore(best, true); err != nil || !slices.Equal(want, other.values()) {
				t.Errorf("the best values are others, %v", err)
			}

			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if name == "model, fused" {
				return // half of a step is no state to go on from, so a step that has begun comes to its end
			}
			_, _, err = s.Step(ctx, 6, list, counted, 0.02, 1)
			if !errors.Is(err, context.Canceled) || !slices.Equal(want, s.values()) {
				t.Errorf("a cancelled step: %v", err)
			}
		})
	}
}

// TestMicroBatches: a step over sequences one by one is the step over all of them, up to the rounding of sums.
func TestMicroBatches(t *testing.T) {
	start := subjects["model"]
	one, several := start(t), start(t)
	list, counted := data()
	var parts []batches.Batch
	for i := range list[0].IDs {
		parts = append(parts, batches.Batch{IDs: list[0].IDs[i : i+1], Labels: list[0].Labels[i : i+1]})
	}

	a, x, err := one.Step(t.Context(), 0, list, counted, 0.01, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, y, err := several.Step(t.Context(), 0, parts, counted, 0.01, 0)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(a-b) > 1e-5 || math.Abs(x-y) > 1e-4*x {
		t.Errorf("loss %g and %g, norm %g and %g", a, b, x, y)
	}
}

// TestLent: steps whose tables' gradients come to be where they are held are the same to the last bit as with copies,
// with tied tables and others, in parts, clipped, with zeros kept, and after a step that was cancelled on its way.
func TestLent(t *testing.T) {
	for _, name := range []string{"llama", "gpt2", "opt"} {
		run := func(lent bool) []float32 {
			m := base(t, name)
			s := wholeOf(t, m, false)
			f := s.subject.(*Full)
			f.KeepZeros = true
			f.host = lent // otherwise gradients are copied, as from a device
			for _, v := range f.values {
				if v.host.Rows > 1 {
					for i := range v.host.Rows {
						v.host.RowF32(i)[i%v.host.Cols] = 0
					}
				}
				v.host.Buf.Changed()
			}

			list, counted := data()
			var parts []batches.Batch
			for i := range list[0].IDs {
				parts = append(parts, batches.Batch{IDs: list[0].IDs[i : i+1], Labels: list[0].Labels[i : i+1]})
			}
			for k, batch := range [][]batches.Batch{parts, list, parts} {
				ctx, cancel := context.WithCancel(t.Context())
				takes := 0
				_, err := f.backward(ctx, batch, counted, func(n string, g kernels.Mat) error {
					if takes++; takes == len(f.names)/2 {
						cancel()
					}
					return f.collect(n, g)
				})
				if !errors.Is(err, context.Canceled) {
					t.Fatalf("%s: a pass that is cancelled: %v", name, err)
				}
				if _, _, err := f.Step(t.Context(), k, batch, counted, 0.01, 0.5); err != nil {
					t.Fatal(err)
				}
			}

			for n, v := range f.values {
				if v.host.Rows > 1 && v.host.RowF32(0)[0] != 0 {
					t.Errorf("%s: %s has lost its zero", name, n)
				}
			}
			return s.values()
		}
		if !slices.Equal(run(true), run(false)) {
			t.Errorf("%s: lent memory gives other values", name)
		}
	}
}

// TestNotFinite: a gradient that is no number ends a step before any value moves.
func TestNotFinite(t *testing.T) {
	for _, name := range []string{"adapter", "model"} {
		s := subjects[name](t)
		var p []float32
		if l, ok := s.subject.(*Low); ok {
			l.Adapter.Trainable()[1].Data()[0] = float32(math.NaN())
			l.Adapter.Trainable()[1].Value.Buf.Changed()
			if err := l.Runtime.Update(); err != nil {
				t.Fatal(err)
			}
		} else {
			v := s.subject.(*Full).values["model.norm.weight"]
			v.host.RowF32(0)[0] = float32(math.NaN())
			v.host.Buf.Changed()
		}

		p = s.values()
		list, counted := data()
		_, _, err := s.Step(t.Context(), 0, list, counted, 0.01, 1)
		if !errors.Is(err, lm.ErrNonFinite) {
			t.Errorf("%s: %v", name, err)
		}
		for i, v := range s.values() {
			if math.Float32bits(v) != math.Float32bits(p[i]) {
				t.Errorf("%s: values have moved", name)
				break
			}
		}
	}
}
