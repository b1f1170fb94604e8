package structure

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/prune"
)

// TestFormulasAreTheScores: the published scores as formulas have the same values to the last bit, of neurons, heads
// and heads of keys and values, and so do sums of a metric of weights.
func TestFormulasAreTheScores(t *testing.T) {
	m, w := open(t, 2)
	o := Options{FFN: Share{Keep: 96}, Heads: Share{Keep: 2}, KVHeads: Share{Keep: 2}}
	scored := func(score string) scores {
		o := o
		o.Score = score
		x, err := newWidth(m, w, o.fill())
		if err != nil {
			t.Fatal(err)
		}
		x.progress = func(int64, int64) {}
		if _, err := x.choose(t.Context(), &arch.Cut{}); err != nil {
			t.Fatal(err)
		}
		return x.s
	}
	for score, formula := range map[string]string{
		WandaSP: "osum(W*sqrt(X))", Minitron: "Ma", "magnitude": "gsum(W)", "expr:W*G": "gsum(W*G)",
		"expr:W*sqrt(X) + W*G": "gsum(W*sqrt(X) + W*G)",
	} {
		want, got := scored(score), scored("expr:"+formula)
		for l := range m.Blocks() {
			if !slices.Equal(want.inner[l], got.inner[l]) {
				t.Errorf("%s, layer %d: neurons differ from %s", formula, l, score)
			}
			root := func(v float64) float64 { return v }
			if score == Minitron { // whose heads are compared by the squares of what the terminal is
				root = math.Sqrt
			}
			for h, v := range want.heads[l] {
				if got.heads[l][h] != root(v) {
					t.Errorf("%s, layer %d, head %d: %g, want %g", formula, l, h, got.heads[l][h], root(v))
				}
			}
			for h, v := range want.kv[l] {
				if got.kv[l][h] != root(v) {
					t.Errorf("%s, layer %d, key/value head %d: %g, want %g", formula, l, h, got.kv[l][h], root(v))
				}
			}
		}
	}

	// FLAP's, from what flows into down.
	p, err := partsFormula("expr:osum(sqr(W)*Xv)")
	if err != nil {
		t.Fatal(err)
	}
	x, err := newWidth(m, w, o.fill())
	if err != nil {
		t.Fatal(err)
	}
	x.progress = func(int64, int64) {}
	if err := x.formula(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	downs := inputsOf(t, m, w, arch.Down)
	for l := range m.Blocks() {
		lin := linear(t, m, l, arch.Down)
		down := weights(t, m, lin.Name)
		n := float64(len(w.IDs) * len(w.IDs[0]))
		for j := range m.Config().Inner {
			var mean, square, norm float64
			for _, rows := range downs[lin.Name] {
				for _, r := range rows {
					mean += float64(r[j]) / n
					square += float64(r[j]) * float64(r[j]) / n
				}
			}
			for i := range down {
				norm += down[i][j] * down[i][j]
			}
			if want := (square - mean*mean) * norm; math.Abs(x.s.inner[l][j]-want) > 1e-4*want+1e-12 {
				t.Fatalf("layer %d, neuron %d: %g, want %g", l, j, x.s.inner[l][j], want)
			}
		}
	}
}

// TestLayersByFormula: block influence as a formula takes out the same layers with the same scores, and so do sums over
// the matrices of a layer, computed here as plain loops.
func TestLayersByFormula(t *testing.T) {
	m, w := open(t, 2)
	want := choose(t, m, w, Options{Layers: Share{Keep: 2}, By: Influence})
	got := choose(t, m, w, Options{Layers: Share{Keep: 2}, By: "expr:Bi"})
	if !slices.Equal(want.Scores, got.Scores) || !slices.Equal(want.Dropped, got.Dropped) || got.By != "expr:Bi" {
		t.Errorf("%+v, want %+v", got, want)
	}

	got = choose(t, m, w, Options{Layers: Share{Keep: 2}, By: "expr:ol2(W)"})
	for l := range m.Blocks() {
		sum := 0.0
		for _, role := range []arch.Role{arch.O, arch.Down} {
			for _, row := range weights(t, m, linear(t, m, l, role).Name) {
				for _, v := range row {
					sum += v * v
				}
			}
		}
		if math.Abs(got.Scores[l]-math.Sqrt(sum)) > 1e-6*got.Scores[l] {
			t.Errorf("layer %d: %g, want %g", l, got.Scores[l], math.Sqrt(sum))
		}
	}

	// What a layer adds to the stream.
	got = choose(t, m, w, Options{Layers: Share{Keep: 2}, By: "expr:pdiv(Sd, Sx)"})
	for l := range m.Blocks() {
		added, before := 0.0, 0.0
		for _, ids := range w.IDs {
			h := streams(t, m, ids)
			for i := range ids {
				for j, v := range h[l].RowF32(i) {
					d := float64(h[l+1].RowF32(i)[j]) - float64(v)
					added += d * d
					before += float64(v) * float64(v)
				}
			}
		}
		if math.Abs(got.Scores[l]-added/before) > 1e-5*got.Scores[l] {
			t.Errorf("layer %d: %g, want %g", l, got.Scores[l], added/before)
		}
	}
}

// TestFamiliesByFormula: whatever an architecture calls its matrices and however it joins them, Wanda-sp as a formula
// makes the same choice as by its name.
func TestFamiliesByFormula(t *testing.T) {
	dirs, err := filepath.Glob("../../lm/testdata/families/*")
	if err != nil || len(dirs) == 0 {
		t.Fatal(err, len(dirs))
	}
	tried := 0
	for _, dir := range dirs {
		dev, err := device.Open("cpu", device.Options{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		m, err := lm.Load(t.Context(), dir, dev, lm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		w := drawn(m.Config().Vocab)
		o := Options{FFN: Share{Drop: 0.5}, NoRestore: true}
		if Check(m, w, o) != nil {
			continue // no MLP that can get smaller
		}
		tried++
		same := map[string]string{WandaSP: "osum(W*sqrt(X))", Minitron: "Ma", "magnitude": "gsum(W)"}
		for name, formula := range same {
			o.Score = name
			want := plan(t, m, w, o)
			o.Score = "expr:" + formula
			if got := plan(t, m, w, o); !reflect.DeepEqual(got.Cut, want.Cut) {
				t.Errorf("%s: %s and %s choose differently", filepath.Base(dir), name, formula)
			}
		}
	}
	if tried < 10 {
		t.Errorf("%d families", tried)
	}
}

// TestMaskIsCut: zeroed columns give the logits of the smaller model, but for the order of additions, of neurons and of
// heads; what was kept to judge formulas gives the choice that Choose makes.
func TestMaskIsCut(t *testing.T) {
	for _, kind := range []Kind{Neurons, Heads} {
		m, w := open(t, 2)
		o := kind.Options(0.5)
		o.Score, o.NoRestore = "expr:zsn(ol2(W*G))*sqrt(Ma) + Av", true
		want := plan(t, m, w, o)

		var list []Operand
		p, err := partsFormula(o.Score)
		if err != nil {
			t.Fatal(err)
		}
		err = eachOperand(t.Context(), m, w, p, func(int64, int64) {}, func(x Operand) error {
			list = append(list, x)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		parts, err := NewParts(t.Context(), m, w, kind, list, p.Expr.Uses)
		if err != nil {
			t.Fatal(err)
		}
		cut, err := parts.Cut(p, 0.5, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(cut, want.Cut) {
			t.Errorf("%s: what is kept chooses otherwise", kind)
		}
		one, err := parts.Cut(p, 0.5, []int{1})
		if err != nil || kind == Neurons && !slices.Equal(one.Inner[1], cut.Inner[1]) {
			t.Errorf("%s: block 1 by itself: %v", kind, err)
		}

		out := filepath.Join(t.TempDir(), "out")
		s, err := m.NewSaver(out, lm.SaveOptions{Cut: cut})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		small, err := lm.Load(t.Context(), out, m.Device(), lm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := Mask(m, cut, nil); err != nil {
			t.Fatal(err)
		}
		a, b := logits(t, m, w.IDs[0]), logits(t, small, w.IDs[0])
		small.Close()
		for i, v := range a {
			if math.Abs(float64(v-b[i])) > 2e-4*max(1, math.Abs(float64(v))) {
				t.Fatalf("%s: logit %d is %g with zeros, %g cut", kind, i, v, b[i])
			}
		}
	}
}

func logits(t *testing.T, m *lm.Model, ids []int32) []float32 {
	t.Helper()
	r, err := m.Forward(t.Context(), [][]int32{ids}, lm.ForwardOptions{Logits: true})
	if err != nil {
		t.Fatal(err)
	}
	x := r.Logits
	return x.Buf.F32()[x.Off : x.Off+x.Len()]
}

// TestFormulasRefused: in one line, and before anything is measured.
func TestFormulasRefused(t *testing.T) {
	m, w := open(t, 1)
	tree := filepath.Join(t.TempDir(), "tree.json")
	if err := os.WriteFile(tree, []byte(`{"data":"gsum","left":{"data":"Ma"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"Bi is of layers":                {FFN: Share{Keep: 96}, Score: "expr:Bi*gsum(W)"},
		"Ma is of ffn":                   {Layers: Share{Keep: 2}, By: "expr:Ma"},
		"one score for every neuron":     {FFN: Share{Keep: 96}, Score: "expr:gsum(W)*X"},
		"[parts] and [out, in]":          {FFN: Share{Keep: 96}, Score: "tree:" + tree},
		"chooses no layers":              {Layers: Share{Keep: 2}, By: "expr:W*G"},
		"unknown name":                   {Layers: Share{Keep: 2}, By: "expr:Nobody"},
		"is of neurons and heads":        {Hidden: Share{Drop: 0.5}, Score: "expr:gsum(W)"},
		"no such file":                   {FFN: Share{Keep: 96}, Score: "tree:" + tree + "x"},
		"does not give one score for ev": {FFN: Share{Keep: 96}, Score: "expr:X"},
	} {
		_, err := Choose(t.Context(), m, w, o)
		if !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", o, err)
		}
	}

	// As a metric of single weights it is none.
	if _, err := prune.MetricByName("expr:gsum(W)"); !errors.Is(err, gp.ErrShape) {
		t.Error(err)
	}

	// Scores that say nothing.
	for formula, want := range map[string]error{
		"Ma - Ma": gp.ErrConstant, strings.Repeat("exp(sqr(gsum(W)))*", 9) + "Ma": gp.ErrNonFinite,
	} {
		_, err := Choose(t.Context(), m, w, Options{FFN: Share{Keep: 96}, Score: "expr:" + formula})
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", formula, err)
		}
	}

	// A tree from a file is recorded as the formula that it is.
	if err := os.WriteFile(tree, []byte(`{"data":"gsum","left":{"data":"W"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if p := plan(t, m, w, Options{FFN: Share{Keep: 96}, Score: "tree:" + tree}); p.Options.Score != "expr:gsum(W)" ||
		p.Width.By != "expr:gsum(W)" {
		t.Errorf("recorded as %q", p.Options.Score)
	}
}
