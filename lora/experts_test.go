package lora

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// TestLostExperts: factors of experts are lost in PEFT beside a shared expert and where experts are laid out in other
// tensors than it knows, which the architecture tells, or the paths, or nothing does. The list is what PEFT 0.21.2 did
// with adapters for small models of each.
func TestLostExperts(t *testing.T) {
	expert := adapter.Module{Path: "model.layers.0.mlp.experts.1.up_proj", Expert: 1}
	shared := adapter.Module{Path: "model.layers.0.mlp.shared_expert.up_proj", Expert: -1}
	query := adapter.Module{Path: "model.layers.0.self_attn.q_proj", Expert: -1}
	lost := []string{
		"qwen2_moe", "deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "granitemoe", "granitemoeshared",
		"granitemoehybrid", "glm4_moe_lite",
	}
	for _, name := range arch.Known() {
		table, err := arch.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}

		for _, list := range [][]adapter.Module{{query, shared}, {query, expert}} {
			got, want := lostOn(table, list), slices.Contains(lost, name) && list[1] == expert
			if got.sure != want || want != strings.Contains(got.text, "experts of a "+name) ||
				!want && got.text != "" {
				t.Errorf("%s, %v: %+v", name, list, got)
			}
		}
	}

	expert.Expert = -1 // without a base, paths are all there is
	for _, c := range []struct {
		list []adapter.Module
		sure bool
		text string
	}{
		{[]adapter.Module{query, shared}, false, ""},
		{[]adapter.Module{query, expert}, false, "HINT: --model"},
		{[]adapter.Module{shared, expert}, true, "a shared expert beside them"},
		{[]adapter.Module{{Path: "model.layers.0.block_sparse_moe.experts.1.w1", Expert: -1}}, false, ""},
	} {
		if got := lostOn(nil, c.list); got.sure != c.sure || !strings.Contains(got.text, c.text) ||
			c.text == "" && got.text != "" {
			t.Errorf("%v: %+v", c.list, got)
		}
	}
}

// TestExportLostExperts: what PEFT would pass over is exported only if that is asked for; without the base a
// remark says what the files do not tell.
func TestExportLostExperts(t *testing.T) {
	dir := writeMixture(t)
	m := openModel(t, dir, "cpu", lm.Options{})
	a, err := Train(t.Context(), m, sequences(31, 4, 8), Options{Kind: "lora", Rank: 2, Steps: 1, Batch: 2, LR: 0.05})
	if err != nil {
		t.Fatal(err)
	}

	if text := a.Unread(m.Config().Arch); text != "" {
		t.Errorf("an olmoe: %s", text)
	}

	qwen, err := arch.Lookup("qwen2_moe")
	if err != nil {
		t.Fatal(err)
	}

	if text := a.Unread(qwen); !strings.Contains(text, "qwen2_moe") {
		t.Errorf("a qwen2_moe: %q", text)
	}

	saved := filepath.Join(t.TempDir(), "a")
	if err := a.Save(saved, false); err != nil {
		t.Fatal(err)
	}

	r, err := Export(t.Context(), saved, filepath.Join(t.TempDir(), "x"), ExportOptions{})
	if err != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "do not tell") {
		t.Fatalf("%+v %v", r, err)
	}

	r, err = Export(t.Context(), saved, filepath.Join(t.TempDir(), "x"), ExportOptions{Model: dir})
	if err != nil || r.Notes != nil {
		t.Fatalf("%+v %v", r, err)
	}

	for _, module := range a.inner.Low { // as if the attention's output were a shared expert
		module.Module.Path = strings.Replace(module.Module.Path, "self_attn.o_proj", "mlp.shared_expert.down_proj", 1)
	}

	a.inner.Config.Targets = adapter.Match{Names: []string{"q_proj", "down_proj", "up_proj"}}
	var kept []*adapter.Low
	for _, l := range a.inner.Low {
		if strings.HasSuffix(l.Module.Path, "q_proj") || strings.HasSuffix(l.Module.Path, "down_proj") ||
			strings.HasSuffix(l.Module.Path, "up_proj") {
			kept = append(kept, l)
		}
	}

	a.inner.Low = kept
	other := filepath.Join(t.TempDir(), "b")
	if err := a.Save(other, false); err != nil {
		t.Fatal(err)
	}

	out := filepath.Join(t.TempDir(), "x")
	if _, err := Export(t.Context(), other, out, ExportOptions{}); !errors.Is(err, ErrUnsupported) ||
		!strings.Contains(failure.Hint(err), "--with-experts") || strings.Contains(err.Error(), "--") {
		t.Fatalf("%v (%s)", err, failure.Hint(err))
	}

	if _, err := os.Stat(out); err == nil {
		t.Error("a refused export left something")
	}

	r, err = Export(t.Context(), other, out, ExportOptions{WithExperts: true})
	if err != nil || len(r.Notes) != 1 {
		t.Fatalf("%+v %v", r, err)
	}
}
