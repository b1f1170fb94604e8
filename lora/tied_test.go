package lora

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/kerneltest"
	"github.com/modelcompress/compress/lm"
)

var tiedBase = filepath.Join("testdata", "peft", "base-llamatied")

// tiedKinds are the ways of changing the token table and the head of a model where they are one, with the
// trained parameters outside of the blocks and whether a checkpoint that they are folded into is tied still.
var tiedKinds = map[string]struct {
	o    Options
	keys []string
	tied bool
}{
	"table whole": {Options{Whole: []string{"embed_tokens"}}, []string{"model.embed_tokens.weight"}, false},
	"head whole":  {Options{Whole: []string{"lm_head"}}, []string{"lm_head.weight"}, false},
	"both whole": {
		Options{Whole: []string{"embed_tokens", "lm_head"}},
		[]string{"model.embed_tokens.weight", "lm_head.weight"},
		false,
	},
	"table": {
		Options{Targets: []string{"embed_tokens", "q"}},
		[]string{"model.embed_tokens.lora_embedding_A", "model.embed_tokens.lora_embedding_B"},
		false,
	},
	"head": {
		Options{Targets: []string{"head", "q"}},
		[]string{"lm_head.lora_A.weight", "lm_head.lora_B.weight"},
		false,
	},
	"table with DoRA": {
		Options{Targets: []string{"embed", "q"}, DoRA: true},
		[]string{
			"model.embed_tokens.lora_embedding_A", "model.embed_tokens.lora_embedding_B",
			"model.embed_tokens.lora_magnitude_vector",
		},
		false,
	},
	"alike, whole": {Options{Whole: []string{"lm_head"}, Tie: true}, []string{"lm_head.weight"}, true},
	"alike": {
		Options{Targets: []string{"lm_head", "q"}, Tie: true},
		[]string{"model.embed_tokens.lora_embedding_A", "model.embed_tokens.lora_embedding_B"},
		true,
	},
}

// TestTied: the token table and the head of a tied model are trained apart or alike, and what was trained does
// the same once it is written, read, exported and folded; the base is as it was afterwards.
func TestTied(t *testing.T) {
	for name, c := range tiedKinds {
		t.Run(name, func(t *testing.T) {
			m := openModel(t, tiedBase, "cpu", lm.Options{})
			data := sequences(m.Config().Vocab, 6, 12)
			before := logitsOf(t, m, data.IDs)

			o := c.o
			o.Kind = "lora"
			o.Rank = 2
			o.Steps = 8

			o.Batch = 6
			o.LR = 0.01
			a, err := Train(t.Context(), m, data, o)
			if err != nil {
				t.Fatal(err)
			}

			if s := a.Report().Steps; !(s[7].Loss < s[0].Loss) {
				t.Errorf("loss %v → %v", s[0].Loss, s[7].Loss)
			}
			if !slices.Equal(before, logitsOf(t, m, data.IDs)) {
				t.Error("the base has changed")
			}

			var keys []string
			for _, p := range a.inner.Trainable() {
				if !strings.Contains(p.Name, "layers") {
					keys = append(keys, p.Name)
				}
			}

			if !slices.Equal(keys, c.keys) {
				t.Errorf("trained %q, want %q", keys, c.keys)
			}

			dir := filepath.Join(t.TempDir(), "a")
			if err := a.Save(dir, false); err != nil {
				t.Fatal(err)
			}

			undo, err := a.Attach(m)
			if err != nil {
				t.Fatal(err)
			}

			want := logitsOf(t, m, data.IDs)
			undo()
			check := func(how string, m *lm.Model, share float64) {
				t.Helper()
				if gap, size := farthest(logitsOf(t, m, data.IDs), want); !(gap <= share*size) {
					t.Errorf("%s: logits (up to %g) differ by %g, more than %g", how, size, gap, share*size)
				}
			}

			for _, from := range []string{dir, exported(t, dir)} {
				again, err := Open(from, m)
				if err != nil {
					t.Fatal(err)
				}
				attached(t, m, again, func(how string, m *lm.Model) { check(how, m, 0) })
			}

			out := filepath.Join(t.TempDir(), "folded")
			if _, err := Fold(t.Context(), tiedBase, dir, out, FoldOptions{}); err != nil {
				t.Fatal(err)
			}

			folded := openModel(t, out, "cpu", lm.Options{})
			check("folded", folded, pathOf(m, 14, o.Rank).Logits()) // one product with sums of weights instead of two
			if folded.Config().Tied != c.tied {
				t.Errorf("folded: tied %v", folded.Config().Tied)
			}

			const full = 96 // a rank that leaves nothing out, with factors rounded to float32
			for i, targets := range [][]string{nil, {"lm_head", "q_proj"}, {"embed_tokens", "q_proj"}} {
				found := filepath.Join(t.TempDir(), "found")
				if _, err := Extract(t.Context(), tiedBase, out, found,
					ExtractOptions{Rank: full, Exact: true, Whole: true, Targets: targets}); err != nil {
					t.Fatal(err)
				}

				again, err := Open(found, m)
				if err != nil {
					t.Fatal(err)
				}

				attached(t, m, again, func(string, *lm.Model) {
					check(fmt.Sprint("extracted, ", i), m,
						pathOf(m, 14, full).Logits())
				})
			}
		})
	}
}

// pathOf is the longest way through a model with adapters of a rank, of sequences of up to so many tokens.
func pathOf(m *lm.Model, tokens, rank int) kerneltest.Path {
	c := m.Config()
	return kerneltest.Path{
		Blocks: m.Blocks(), Hidden: c.Hidden, Inner: c.Inner, Heads: c.Heads, HeadDim: c.HeadDim, Vocab: c.Vocab,
		Tokens: tokens, Rank: rank,
	}
}

// exported writes an adapter once more.
func exported(t *testing.T, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "plain")
	if _, err := Export(t.Context(), dir, out, ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTiedGradients: the gradients of what both uses of a table share equal differences of the loss over
// 2·10⁻³, to 2 % or 10⁻⁴ of the largest (F32 and the third order).
func TestTiedGradients(t *testing.T) {
	for _, name := range []string{"alike", "alike, whole", "table", "head", "both whole"} {
		m := openModel(t, tiedBase, "cpu", lm.Options{})
		data := sequences(m.Config().Vocab, 3, 10)
		o := tiedKinds[name].o
		o.Kind = "lora"
		o.Rank = 2
		o.Steps = 4

		o.LR = 0.02
		a, err := Train(t.Context(), m, data, o)
		if err != nil {
			t.Fatal(err)
		}

		_, grads, err := a.Gradients(t.Context(), m, data.IDs, nil)
		if err != nil {
			t.Fatal(err)
		}

		for i, p := range a.inner.Trainable() {
			if strings.Contains(p.Name, "layers") {
				continue
			}

			g := grads[i].Value.Buf.F32()
			for _, at := range []int{largest(g), len(g) / 2} {
				loss := func(by float32) float64 {
					p.Data()[at] += by
					defer func() { p.Data()[at] -= by }()
					r, _, err := a.Gradients(t.Context(), m, data.IDs, nil)
					if err != nil {
						t.Fatal(err)
					}
					return r.Loss
				}

				const h = 1e-3
				slope := (loss(h) - loss(-h)) / (2 * h)
				if gap := math.Abs(
					slope - float64(g[at])); gap > 0.02*math.Abs(slope)+1e-4*max(1, math.Abs(float64(g[largest(g)]))) {
					t.Errorf("%s: %s[%d]: gradient %g, slope %g", name, p.Name, at, g[at], slope)
				}
			}
		}
	}
}

// TestTiedBadInput: a table and a head follow each other only where they are one, and something changes them.
func TestTiedBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		base string
		o    Options
		want error
	}{
		"no tied base": {
			filepath.Join("testdata", "peft", "base-llama"),
			Options{Kind: "lora", Tie: true, Targets: []string{"embed_tokens"}},
			ErrTarget,
		},
		"neither changed": {tiedBase, Options{Kind: "lora", Tie: true, Targets: []string{"q"}}, ErrTarget},
		"pools":           {tiedBase, Options{Kind: "mos", Tie: true, Rank: 2, EquivalentRank: 1}, ErrConfig},
		"DoRA alike": {
			tiedBase,
			Options{Kind: "lora", Tie: true, DoRA: true, Targets: []string{"embed_tokens"}},
			ErrUnsupported,
		},
	} {
		m := openModel(t, c.base, "cpu", lm.Options{})
		c.o.Steps = 1
		if _, err := Train(t.Context(), m, sequences(m.Config().Vocab, 2, 8), c.o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
