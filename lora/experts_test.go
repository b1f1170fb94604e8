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

// TestLostExperts: what PEFT leaves out is said, as the architecture tells, or the paths, or nothing does: factors of
// experts where these are laid out in other tensors than it knows, and those of qwen2_moe, and of the other mixtures
// what lies beside the experts and is called as they are. The lists are what PEFT 0.21.2 did with adapters for small
// models of each; compare/interop.sh does it again.
func TestLostExperts(t *testing.T) {
	expert := adapter.Module{Path: "model.layers.0.mlp.experts.1.up_proj", Expert: 1}
	shared := adapter.Module{Path: "model.layers.0.mlp.shared_experts.up_proj", Expert: -1}
	dense := adapter.Module{Path: "model.layers.0.mlp.up_proj", Expert: -1}
	query := adapter.Module{Path: "model.layers.0.self_attn.q_proj", Expert: -1}
	unread := []string{"qwen2_moe", "gpt_oss", "granitemoe", "granitemoeshared", "granitemoehybrid"}
	byName := []string{"mixtral", "olmoe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite"}
	for _, name := range arch.Known() {
		table, err := arch.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}

		for _, c := range []struct {
			list []adapter.Module
			in   []string // the architectures of which something is lost
			what string
		}{
			{[]adapter.Module{query}, nil, ""},
			{[]adapter.Module{query, expert}, unread, "experts of a " + name},
			{[]adapter.Module{query, shared}, byName, "dense layers and shared experts of a " + name},
			{[]adapter.Module{query, dense}, byName, "dense layers and shared experts of a " + name},
		} {
			got, want := lostOn(table, c.list), slices.Contains(c.in, name)
			if got.sure != want || want != (got.text != "") || want && !strings.Contains(got.text, " for the "+c.what) {
				t.Errorf("%s, %v: %+v", name, c.list, got)
			}
		}
	}

	expert.Expert = -1 // without a base, paths are all there is
	single := adapter.Module{Path: "model.layers.0.mlp.shared_expert.up_proj", Expert: -1}
	for _, c := range []struct {
		list []adapter.Module
		sure bool
		text string
	}{
		{[]adapter.Module{query, single}, false, ""},
		{[]adapter.Module{query, dense}, false, ""},
		{[]adapter.Module{query, expert}, false, "no base is given"},
		{[]adapter.Module{single, expert}, true, "a shared expert beside them"},
		{[]adapter.Module{query, shared}, true, "shared experts of a mixture"},
		{[]adapter.Module{dense, expert}, true, "or for its dense layers"},
		{[]adapter.Module{{Path: "model.layers.0.block_sparse_moe.experts.1.w1", Expert: -1}}, false, ""},
	} {
		if got := lostOn(nil, c.list); got.sure != c.sure || !strings.Contains(got.text, c.text) ||
			c.text == "" && got.text != "" {
			t.Errorf("%v: %+v", c.list, got)
		}
	}
}

// TestExtractLostExperts: an extraction remarks on experts also where these are not called as those of PEFT are.
func TestExtractLostExperts(t *testing.T) {
	base := filepath.Join("..", "lm", "testdata", "families", "granitemoe")
	r, err := Extract(t.Context(), base, base, filepath.Join(t.TempDir(), "x"), ExtractOptions{Rank: 1})
	if err != nil || len(r.Notes) == 0 || !strings.Contains(r.Notes[0], "experts of a granitemoe") {
		t.Errorf("%+v %v", r, err)
	}

	r, err = Extract(t.Context(), base, base, filepath.Join(t.TempDir(), "x"),
		ExtractOptions{Rank: 1, Targets: []string{"q_proj"}})
	if err != nil || len(r.Notes) != 0 {
		t.Errorf("%+v %v", r, err)
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
