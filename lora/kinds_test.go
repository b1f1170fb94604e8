package lora

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// ofTorch is what testdata/kinds.py has made.
type ofTorch struct {
	IDs         [][]int32
	LR, Decay   float64
	Ratio       float64
	Cases, Plus map[string][]float64
}

// options are those of the runs of testdata/kinds.py.
func (w ofTorch) options(init *Adapter) Options {
	return Options{
		Init: init, Steps: 5, Batch: len(w.IDs), Ordered: true, LR: w.LR, WeightDecay: w.Decay,
		Kind: init.Kind(), Rank: init.inner.Config.Rank, Alpha: init.inner.Config.Alpha,
	}
}

// TestKindsTrainAsPEFT: five steps of AdamW from adapters that PEFT has written have the losses of torch and PEFT, to
// 2e-5 of them: float32 sums of another order, five steps deep.
func TestKindsTrainAsPEFT(t *testing.T) {
	var want ofTorch
	readJSON(t, filepath.Join("testdata", "kinds.json"), &want)
	check := func(t *testing.T, name string, ratio float64, losses []float64) {
		t.Helper()
		dir := filepath.Join("testdata", "peft", name)
		var c struct {
			Base string `json:"base_model_name_or_path"`
		}
		readJSON(t, filepath.Join(dir, "adapter_config.json"), &c)
		m := openModel(t, filepath.Join("testdata", "peft", c.Base), "cpu", lm.Options{})
		a, err := Open(dir, m)
		if err != nil {
			t.Fatal(err)
		}

		o := want.options(a)
		o.LRRatio = ratio
		got, err := Train(t.Context(), m, corpus.New(want.IDs, "ids"), o)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range got.Report().Steps {
			if math.Abs(s.Loss-losses[i]) > 2e-5*losses[i] {
				t.Errorf("step %d: loss %.7f, torch has %.7f", i, s.Loss, losses[i])
			}
		}
	}

	for name, losses := range want.Cases {
		t.Run(name, func(t *testing.T) { check(t, name, 0, losses) })
	}
	for name, losses := range want.Plus {
		t.Run(name+" LoRA+", func(t *testing.T) { check(t, name, want.Ratio, losses) })
	}
}

// TestShiraPlaces: elements at random lie where PEFT puts them for the seed; the other masks choose the largest scores.
func TestShiraPlaces(t *testing.T) {
	m := openModel(t, filepath.Join("testdata", "peft", "base-llama"), "cpu", lm.Options{})
	want, err := Open(filepath.Join("testdata", "peft", "shira_random"), m)
	if err != nil {
		t.Fatal(err)
	}

	data := corpus.New([][]int32{{1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}}, "ids")
	o := Options{Kind: "shira", Rank: 2, Seed: 7, Targets: []string{"q", "k", "down"}, Steps: 1, LR: 1e-2}
	places := func(mask string) map[string]adapter.Sparse {
		o.ShiraMask = mask
		a, err := Train(t.Context(), m, data, o)
		if err != nil {
			t.Fatalf("%s: %v", mask, err)
		}

		list := map[string]adapter.Sparse{}
		for _, l := range a.inner.Low {
			s := l.Factors.(adapter.Sparse)
			if !slices.ContainsFunc(s.Value.Data(), func(v float32) bool { return v != 0 }) {
				t.Errorf("%s: %s: nothing was trained", mask, l.Module.Path)
			}
			list[l.Module.Path] = s
		}
		return list
	}

	for path, s := range places("random") {
		l := want.inner.Find(path)
		if l == nil {
			t.Fatalf("no module %s", path)
		}
		if w := l.Factors.(adapter.Sparse); !slices.Equal(s.Rows, w.Rows) || !slices.Equal(s.Cols, w.Cols) {
			t.Errorf("%s: other places than PEFT's", path)
		}
	}

	for _, mask := range ShiraMasks[1:] {
		for path, s := range places(mask) {
			w, err := base(t, m).Values(path + ".weight")
			if err != nil {
				t.Fatal(err)
			}
			if mask == "magnitude" {
				checkLargest(t, path, s, func(o, i int) float64 { return math.Abs(float64(w.RowF32(o)[i])) })
			}
			for n := range s.Rows {
				if n > 0 && (s.Rows[n] < s.Rows[n-1] || s.Rows[n] == s.Rows[n-1] && s.Cols[n] <= s.Cols[n-1]) {
					t.Fatalf("%s: %s: place %d is out of order", mask, path, n)
				}
			}
		}
	}
}

// checkLargest: what is chosen has scores as high as any that is not.
func checkLargest(t *testing.T, path string, s adapter.Sparse, score func(o, i int) float64) {
	t.Helper()
	chosen := map[[2]int]bool{}
	least := math.Inf(1)
	for n := range s.Rows {
		at := [2]int{int(s.Rows[n]), int(s.Cols[n])}
		chosen[at] = true
		least = min(least, score(at[0], at[1]))
	}
	for o := range s.Out {
		for i := range s.In {
			if v := score(o, i); !chosen[[2]int{o, i}] && v > least {
				t.Errorf("%s: (%d, %d) has %g and was left out; the least chosen has %g", path, o, i, v, least)
				return
			}
		}
	}
}

// TestKindsComeBack: what is trained, saved in PEFT's form and read again is the same to the bit, and its folded model
// computes the same as the attached one, to rounding.
func TestKindsComeBack(t *testing.T) {
	dir := filepath.Join("testdata", "peft", "base-llama")
	ids := [][]int32{{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}}
	for _, o := range []Options{
		{Kind: "miss", Rank: 5},
		{Kind: "miss", Rank: 2, MiniRank: 8, Layers: []int{1}},
		{Kind: "gralora", Rank: 4},
		{Kind: "gralora", Rank: 4, Parts: 4, Hybrid: 2, Exclude: []string{"down_proj"}},
		{Kind: "shira", Rank: 1},
		{Kind: "shira", Rank: 2, ShiraMask: "snip", Layers: []int{0, 2}},
		{Kind: "shira", Rank: 1, ShiraMask: "wanda", Targets: []string{"up", "lm_head"}, KeepZeros: true},
	} {
		m := openModel(t, dir, "cpu", lm.Options{})
		o.Steps, o.LR = 3, 1e-2
		a, err := Train(t.Context(), m, corpus.New(ids, "ids"), o)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}

		out := filepath.Join(t.TempDir(), "adapter")
		if err := a.Save(out, false); err != nil {
			t.Fatal(err)
		}
		again, err := Open(out, m)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		if len(a.inner.Low) != len(again.inner.Low) || a.Trainable() != again.Trainable() {
			t.Fatalf("%s: %d modules and %d parameters, read again %d and %d", o.Kind, len(a.inner.Low), a.Trainable(),
				len(again.inner.Low), again.Trainable())
		}
		want, err := Count(m, o)
		if err != nil || want != a.Trainable() {
			t.Errorf("%s: %d parameters, counted %d (%v)", o.Kind, a.Trainable(), want, err)
		}

		for i, l := range a.inner.Low {
			x, y := l.Parameters(), again.inner.Low[i].Parameters()
			for k := range x {
				if !slices.Equal(x[k].Data(), y[k].Data()) {
					t.Errorf("%s: %s differs", o.Kind, x[k].Name)
				}
			}
		}

		var attachedLogits []float32
		attached(t, m, again, func(_ string, m *lm.Model) { attachedLogits = logitsOf(t, m, ids) })
		whole := filepath.Join(t.TempDir(), "folded")
		if _, err := Fold(context.Background(), dir, out, whole, FoldOptions{}); err != nil {
			t.Fatal(err)
		}
		gap, size := farthest(logitsOf(t, openModel(t, whole, "cpu", lm.Options{}), ids), attachedLogits)
		if gap > 1e-5*max(size, 10) {
			t.Errorf("%s: folded logits differ by %g", o.Kind, gap)
		}
	}
}

// TestKindsRefused: what PEFT has no form for, and sizes that fit no matrix, are refused by name.
func TestKindsRefused(t *testing.T) {
	data := corpus.New([][]int32{{1, 2, 3, 4, 5}}, "ids")
	for _, c := range []struct {
		base string
		o    Options
		want error
	}{
		{"gpt2", Options{Kind: "miss"}, ErrUnsupported},
		{"gpt2", Options{Kind: "shira", Rank: 1}, ErrUnsupported},
		{"llama", Options{Kind: "miss", Targets: []string{"embed_tokens"}}, ErrUnsupported},
		{"llama", Options{Kind: "miss", Rank: 17}, ErrConfig},
		{"llama", Options{Kind: "miss", Rank: 2, MiniRank: 5}, ErrConfig},
		{"llama", Options{Kind: "miss", RSLoRA: true}, ErrConfig},
		{"llama", Options{Kind: "gralora", Rank: 5}, ErrConfig},
		{"llama", Options{Kind: "gralora", Rank: 6, Parts: 3}, ErrConfig},
		{"llama", Options{Kind: "shira", Rank: 16}, ErrConfig},
		{"llama", Options{Kind: "shira", Rank: 1, ShiraMask: "best"}, ErrConfig},
		{"llama", Options{Kind: "shira", Rank: 1, KeepZeros: true}, ErrConfig},
		{"llama", Options{Kind: "shira", Rank: 1, Bias: "all"}, ErrConfig},
		{"llama", Options{Kind: "shira", Rank: 1, LRRatio: 2}, ErrConfig},
		{"llama", Options{Kind: "lora", LRRatio: -1}, ErrConfig},
	} {
		m := openModel(t, filepath.Join("testdata", "peft", "base-"+c.base), "cpu", lm.Options{})
		c.o.Steps = 1
		if _, err := Train(t.Context(), m, data, c.o); !errors.Is(err, c.want) {
			t.Errorf("%s %+v: %v, want %v", c.base, c.o, err, c.want)
		}
	}
}
