package lora

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// TestFamilies: in a model of every family, an adapter of all matrices of the blocks changes what the model computes,
// and folded into the weights it changes it in the same way.
func TestFamilies(t *testing.T) {
	root := filepath.Join("..", "lm", "testdata", "families")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	ids := sequences(61, 2, 9).IDs
	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) {
			base := filepath.Join(root, e.Name())
			m := openModel(t, base, "cpu", lm.Options{})
			plain := logitsOf(t, m, ids)

			a, err := Train(t.Context(), m, sequences(61, 2, 9),
				Options{Kind: "lora", Rank: 2, Steps: 2, Batch: 2, LR: 0.02})
			if err != nil {
				t.Fatal(err)
			}

			matrices := 0
			for l := range m.Blocks() {
				matrices += len(m.Linears(l))
			}
			if len(a.inner.Low) != matrices {
				t.Errorf("%d matrices adapted of %d", len(a.inner.Low), matrices)
			}

			saved, folded := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "f")
			if err := a.Save(saved, false); err != nil {
				t.Fatal(err)
			}
			if _, err := Fold(t.Context(), base, saved, folded, FoldOptions{}); err != nil {
				t.Fatal(err)
			}

			detach, err := a.Attach(m)
			if err != nil {
				t.Fatal(err)
			}
			attached := logitsOf(t, m, ids)
			detach()

			got := logitsOf(t, openModel(t, folded, "cpu", lm.Options{}), ids)
			top, moved := 0.0, 0.0
			off := 0.0
			for i, v := range attached {
				top = max(top, math.Abs(float64(v)))
				moved = max(moved, math.Abs(float64(v-plain[i])))
				off = max(off, math.Abs(float64(v-got[i])))
			}

			// The tolerance of logits in the oracles of lm: ten times the noise of float32.
			if moved < 1e-3*top || off > 2e-5*top {
				t.Errorf("of %g, the adapter moves %g, folded it is off by %g", top, moved, off)
			}
		})
	}
}

// TestSmallestPool: a Mixture of Shards that asks for no rank gets one that the pools of all its matrices have, also
// where a kind of matrix is in the first block alone.
func TestSmallestPool(t *testing.T) {
	m := openModel(t, filepath.Join("..", "lm", "testdata", "families", "glm4_moe"), "cpu", lm.Options{})
	modules, err := adapter.ModulesOf(m)
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		targets []string
		want    int
	}{{nil, 3}, {[]string{"q"}, 5}, {[]string{"/.*mlp.gate_proj/"}, 3}} {
		o := Options{Kind: "mos", EquivalentRank: 3, Private: 1, Shards: 2, Targets: c.targets}
		got, err := o.config("base", modules)
		if err != nil || got.Rank != c.want {
			t.Errorf("%v: rank %d (%v), want %d", c.targets, got.Rank, err, c.want)
		}
	}

	o := Options{Kind: "mos", Steps: 1, Batch: 2, Shards: 2}
	if _, err := Train(t.Context(), m, sequences(61, 2, 9), o); err != nil {
		t.Error(err)
	}
}
