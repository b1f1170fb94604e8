package lora

import (
	"bytes"
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// little is a tied Llama of three blocks, a fiftieth of the nano model.
var little = filepath.Join("testdata", "peft", "base-llamatied")

// halved writes the little model with half of every matrix' elements set to zero, in a pattern without structure,
// in an element type.
func halved(t *testing.T, dtype safetensors.DType) string {
	t.Helper()
	m := openModel(t, inType(t, little, dtype), "cpu", lm.Options{})
	for k, name := range m.Tensors() {
		v, err := m.MutableParam(name)
		if err != nil {
			t.Fatal(err)
		}

		if v.Rows == 1 {
			continue
		}

		for i := range v.Rows {
			for j := range v.Cols {
				if (i*2654435761+j*40503+k*97)>>3%2 != 0 {
					continue
				}

				if v.DType() == kernels.F32 {
					v.RowF32(i)[j] = 0
				} else {
					v.RowU16(i)[j] = 0
				}
			}
		}

		v.Buf.Changed()
	}

	out := filepath.Join(t.TempDir(), "halved")
	s, err := m.NewSaver(out, lm.SaveOptions{})
	if err == nil {
		err = s.Finish(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// filled lists the matrices of a model that have a value where those of another have a zero.
func filled(t *testing.T, base, m *lm.Model) (names []string) {
	t.Helper()

	for _, name := range base.Tensors() {
		was, err := base.Param(name)
		if err != nil {
			t.Fatal(err)
		}

		is, err := m.Param(name)
		if err != nil {
			t.Fatal(err)
		}

		if was.Rows == 1 {
			continue
		}

		zero := func(v kernels.Mat, i, j int) bool {
			if v.DType() == kernels.F32 {
				return v.RowF32(i)[j] == 0
			}
			return v.RowU16(i)[j]&0x7fff == 0
		}

		moved := false
		for i := range was.Rows {
			for j := range was.Cols {
				moved = moved || zero(was, i, j) && !zero(is, i, j)
			}
		}

		if moved {
			names = append(names, name)
		}
	}

	return names
}

// TestTuneKeepsZeros: zeros of the matrices stay zero with every optimiser, however steps are cut and clipped,
// after an interruption, and with any number of workers; without the option they do not.
func TestTuneKeepsZeros(t *testing.T) {
	base := map[safetensors.DType]string{
		safetensors.F32:  halved(t, safetensors.F32),
		safetensors.BF16: halved(t, safetensors.BF16),
	}
	for name, o := range map[string]Options{
		"adamw":         {WeightDecay: 0.1},
		"adamw clipped": {Clip: 0.5, MicroBatch: 1},
		"lomo":          {Optimizer: "lomo", WeightDecay: 0.1},
		"lomo clipped":  {Optimizer: "lomo", Clip: 0.5},
		"adalomo":       {Optimizer: "adalomo"},
	} {
		for dtype, dir := range base {
			t.Run(name+" "+dtype.String(), func(t *testing.T) {
				o.Steps = 5
				o.Batch = 3
				o.LR = 0.01
				o.SaveEvery = 2
				o.KeepZeros = true
				run := func(o Options, stop int) (*lm.Model, *Report, []byte) {
					m := openModel(t, dir, "cpu", lm.Options{})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()

					o.Each = func(s Step) {
						if s.Step == stop {
							cancel()
						}
					}

					r, err := Tune(ctx, m, sequences(m.Config().Vocab, 6, 16), o)
					if errors.Is(err, context.Canceled) != (stop >= 0) || err != nil && stop < 0 {
						t.Fatal(err)
					}

					var all []byte
					for _, n := range m.Tensors() {
						p, err := m.Param(n)
						if err != nil {
							t.Fatal(err)
						}
						all = append(all, p.Buf.Bytes()...)
					}

					return m, r, all
				}

				plain := openModel(t, dir, "cpu", lm.Options{})
				m, r, want := run(o, -1)
				if names := filled(t, plain, m); len(names) > 0 {
					t.Errorf("zeros of %v were filled", names)
				}
				if z := r.Zeros; z == nil || !z.Kept || z.Before == 0 || *z.After < z.Before || z.Pruned == 0 {
					t.Errorf("%+v", z)
				}

				o.StateDir, o.Resume = filepath.Join(t.TempDir(), "state"), true
				run(o, 2)
				if _, _, again := run(o, -1); !bytes.Equal(again, want) {
					t.Error("after an interruption: other bytes")
				}

				o.StateDir = ""
				o.Resume = false
				o.KeepZeros = false
				var said []string
				o.Remark = func(s string) { said = append(said, s) }
				m, r, _ = run(o, -1)
				if names := filled(t, plain, m); len(names) == 0 || *r.Zeros.After >= r.Zeros.Before {
					t.Error("without the option nothing was filled: the test shows nothing")
				}

				if !slices.ContainsFunc(said, func(s string) bool {
					return strings.Contains(s, "are pruned, and training fills their zeros")
				}) {
					t.Errorf("no remark: %q", said)
				}
			})
		}
	}
}

// keeping are options of every kind of adapter that can keep zeros.
var keeping = map[string]Options{
	"mos":     {Kind: "mos", Rank: 5, EquivalentRank: 3, Shards: 2},
	"lora":    {Kind: "lora", Rank: 3, Bias: "all"},
	"wide":    {Kind: "lora", Rank: 20, Targets: []string{"up", "down"}},
	"dropout": {Kind: "lora", Rank: 3, Dropout: 0.3, Targets: []string{"q", "down"}},
	"table":   {Kind: "lora", Rank: 3, Targets: []string{"q", "embed_tokens"}, Tie: true, LR: 1e-3},
	"whole":   {Kind: "lora", Rank: 3, Targets: []string{"q"}, Whole: []string{"lm_head"}},
	"vera":    {Kind: "vera", Rank: 6},
	"prolora": {Kind: "prolora", Rank: 5, Unshared: 2, InParts: 3, OutParts: 2},
	"rasa":    {Kind: "rasa", Rank: 3},
	"share":   {Kind: "share", Rank: 3},
}

// TestAdapterKeepsZeros: an adapter of any kind that keeps zeros learns, comes back from its files as one that
// does, and computes what the model does that it is folded into, whose zeros are those of the base.
func TestAdapterKeepsZeros(t *testing.T) {
	dir := halved(t, safetensors.F32)
	for name, o := range keeping {
		t.Run(name, func(t *testing.T) {
			m := openModel(t, dir, "cpu", lm.Options{})
			data := sequences(m.Config().Vocab, 6, 20)
			o.LR = or(o.LR, 0.02)

			o.Steps = 6
			o.Batch = 6
			o.KeepZeros = true
			o.StateDir = filepath.Join(t.TempDir(), "state")
			a, err := Train(t.Context(), m, data, o)
			if err != nil {
				t.Fatal(err)
			}

			r := a.Report()
			if last := r.Steps[len(r.Steps)-1].Loss; !(last < r.Steps[0].Loss) {
				t.Errorf("loss %v → %v", r.Steps[0].Loss, last)
			}
			if r.Zeros == nil || !r.Zeros.Kept || r.Zeros.Before == 0 {
				t.Errorf("%+v", r.Zeros)
			}

			out := filepath.Join(t.TempDir(), "adapter")
			if err := a.Save(out, false); err != nil {
				t.Fatal(err)
			}

			back, err := Open(out, m)
			if err != nil || !back.inner.Config.KeepZeros {
				t.Fatalf("%v; %+v", err, back.inner.Config)
			}

			want := adaptedLogits(t, m, back, data)

			folded := filepath.Join(t.TempDir(), "folded")
			report, err := Fold(t.Context(), dir, out, folded, FoldOptions{})
			if err != nil {
				t.Fatal(err)
			}

			if z := report.Zeros; z == nil || !z.Kept || z.After < z.Before || z.Lost != 0 || len(report.Notes) > 0 {
				t.Errorf("%+v %q", report.Zeros, report.Notes)
			}

			whole := openModel(t, folded, "cpu", lm.Options{})
			if names := filled(t, m, whole); len(names) > 0 {
				t.Errorf("zeros of %v were filled", names)
			}

			// The same sums in another order: float32 rounds logits of up to about 10 by some 1e-5.
			if gap, size := farthest(logitsOf(t, whole, data.IDs), want); gap > 1e-5*max(size, 10) {
				t.Errorf("logits (up to %g) differ by %g", size, gap)
			}
		})
	}
}

// TestKeptZerosGradient checks gradients of an adapter that keeps zeros against differences of the loss.
func TestKeptZerosGradient(t *testing.T) {
	dir := halved(t, safetensors.F32)
	for _, name := range []string{"lora", "mos", "table", "wide"} {
		o := keeping[name]
		m := openModel(t, dir, "cpu", lm.Options{})
		data := sequences(m.Config().Vocab, 3, 24)
		o.LR = or(o.LR, 0.05)
		o.Steps, o.KeepZeros = 6, true
		a, err := Train(t.Context(), m, data, o)
		if err != nil {
			t.Fatal(err)
		}

		_, grads, err := a.Gradients(t.Context(), m, data.IDs, nil)
		if err != nil {
			t.Fatal(err)
		}

		for i, param := range a.inner.Trainable() {
			checkDifference(t, name, m, a, data, param, flat(grads[i].Value))
		}
	}
}

// checkDifference compares the largest element of a parameter's gradient with a difference of the loss.
func checkDifference(t *testing.T, name string, m *lm.Model, a *Adapter, data corpus.Windows, param *adapter.Param,
	g []float32,
) {
	t.Helper()
	at, v := largest(g), param.Data()
	loss := func(x float32) float64 {
		was := v[at]
		defer func() { v[at] = was }()

		v[at] = x
		undo, err := a.Attach(m)
		if err != nil {
			t.Fatal(err)
		}
		defer undo()

		r, err := m.Forward(t.Context(), data.IDs, lm.ForwardOptions{})
		if err != nil {
			t.Fatal(err)
		}

		return r.Loss
	}

	const h = 4e-3
	diff := slope(loss, v[at], h)

	// What is left of a difference of the fourth order is the rounding of losses in float32, some 2e-6/h, and the
	// remainder of a curve that training has left steep: a few per cent of the gradient.
	if math.Abs(diff-float64(g[at])) > 0.06*math.Abs(float64(g[at]))+5e-4 {
		t.Errorf("%s: %s[%d]: gradient %v, difference %v", name, param.Name, at, g[at], diff)
	}
}

// slope is the derivative of f at x by central differences over h and h/2, of which the cubic term is taken away.
func slope(f func(x float32) float64, x, h float32) float64 {
	wide := (f(x+h) - f(x-h)) / (2 * float64(h))
	narrow := (f(x+h/2) - f(x-h/2)) / float64(h)
	return (4*narrow - wide) / 3
}

// TestFoldKeepsZeros: a fold that keeps zeros says what of the change it left out; one that does not says what
// becomes of a pruned model.
func TestFoldKeepsZeros(t *testing.T) {
	dir := halved(t, safetensors.F32)
	m := openModel(t, dir, "cpu", lm.Options{})
	var said []string
	a, err := Train(t.Context(), m, sequences(m.Config().Vocab, 6, 20), Options{
		Kind: "lora", Rank: 3, Steps: 4, LR: 0.02, Remark: func(s string) { said = append(said, s) },
	})
	if err != nil || len(said) != 1 || !strings.Contains(said[0], "fills their zeros") {
		t.Fatalf("%v; %q", err, said)
	}

	out := filepath.Join(t.TempDir(), "adapter")
	if err := a.Save(out, false); err != nil {
		t.Fatal(err)
	}

	for _, keep := range []bool{true, false} {
		folded := filepath.Join(t.TempDir(), "folded")
		r, err := Fold(t.Context(), dir, out, folded, FoldOptions{KeepZeros: keep})
		if err != nil {
			t.Fatal(err)
		}

		names := filled(t, m, openModel(t, folded, "cpu", lm.Options{}))
		z, notes := r.Zeros, strings.Join(r.Notes, "\n")
		switch {
		case z == nil || z.Kept != keep || z.Pruned == 0 || keep != (len(names) == 0) || keep != (z.After == z.Before):
			t.Errorf("%v: %+v; filled %v", keep, z, names)
		// of half of the elements about √½
		case keep && (!(z.Lost > 0.5 && z.Lost < 0.9) || !strings.Contains(notes, "is left out")):
			t.Errorf("%+v %q", z, notes)
		case !keep && !strings.Contains(notes, "are pruned, and the adapter fills them"):
			t.Errorf("%q", notes)
		}
	}
}

// TestKeepZerosRefused: what cannot keep zeros says so.
func TestKeepZerosRefused(t *testing.T) {
	m := openModel(t, nano, "cpu", lm.Options{})
	data := sequences(m.Config().Vocab, 2, 8)
	if _, err := Train(t.Context(), m, data,
		Options{Kind: "lora", DoRA: true, KeepZeros: true, Steps: 1}); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}

	a, err := Train(t.Context(), m, data, Options{Kind: "lora", KeepZeros: true, Steps: 1})
	if err != nil {
		t.Fatal(err)
	}

	if text := a.Unread(m.Config().Arch); text != unmasked {
		t.Errorf("%q", text)
	}

	b, err := NewBank(m)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()

	if err := b.Add("a", a); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}
