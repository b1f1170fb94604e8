package lora

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// noGGUF says why adapters of testdata cannot be files of llama.cpp's.
var noGGUF = map[string]string{
	"gpt2_biasall": "trained copy", "gpt2_dora": "DoRA", "gpt2_lorabias": "a bias beside B",
	"gpt2_wte": "tied head", "llama_dora": "DoRA", "llama_dora_rslora": "DoRA",
	"llama_embed_dora": "DoRA", "llama_save_embed": "trained copy", "llama_save_head_norm": "trained copy",
	"llama_save_mlp": "trained copy", "llama_tokens": "trained rows", "llama_tokens_dict": "trained rows",
	"llamabias_all": "trained copy", "llamabias_dora": "DoRA", "llamabias_lorabias": "a bias beside B",
	"llamabias_only": "trained copy", "opt_qv": "nothing is known of how llama.cpp has a opt",
	"tied_embed": "tied head", "tied_embed_ensure": "tied head", "tied_head": "tied head",
	"tied_save_embed": "trained copy", "tied_save_embed_ensure": "trained copy", "tied_save_head": "trained copy",
	"tied_tokens": "trained rows", "qwen_qkv": "trained copy",
	"gralora_hybrid": "trained copy", "miss_layers_save": "trained copy", "miss_odd": "trained copy",
	"shira_save": "trained copy",
}

// TestExportGGUF: PEFT's adapters as files of llama.cpp's are read again as the same changes of the same modules, or
// refused with what the format does not have.
func TestExportGGUF(t *testing.T) {
	root := filepath.Join("testdata", "peft")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), "base-") {
			continue
		}
		t.Run(e.Name(), func(t *testing.T) {
			var c struct {
				Base string `json:"base_model_name_or_path"`
			}
			readJSON(t, filepath.Join(root, e.Name(), "adapter_config.json"), &c)
			base := filepath.Join(root, c.Base)
			dir, out := filepath.Join(root, e.Name()), filepath.Join(t.TempDir(), "a.gguf")
			r, err := ExportGGUF(t.Context(), dir, out, GGUFOptions{Model: base})
			if why := noGGUF[e.Name()]; why != "" {
				if err == nil || !strings.Contains(err.Error(), why) {
					t.Errorf("%v, want %q", err, why)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}

			checkpoint, err := adapter.OpenCheckpoint(t.Context(), base)
			if err != nil {
				t.Fatal(err)
			}
			defer checkpoint.Close()
			sameChanges(t, dir, out, checkpoint, r.Exact)
		})
	}
}

// sameChanges compares the changes of two adapters.
func sameChanges(t *testing.T, dir, file string, base *adapter.Checkpoint, exact bool) {
	t.Helper()
	want, _, err := load(dir, base)
	if err != nil {
		t.Fatal(err)
	}
	have, _, err := load(file, base)
	if err != nil {
		t.Fatal(err)
	}

	if len(have.Low) != len(want.Low) {
		t.Fatalf("%d modules, want %d", len(have.Low), len(want.Low))
	}
	for i, w := range want.Low {
		h := have.Low[i]
		if h.Module != w.Module {
			t.Fatalf("module %s, want %s", h.Module.Path, w.Module.Path)
		}
		x, _ := product64(h)
		y, sizes := product64(w)
		for k := range y {
			// One rounding of a factor to float32 for each term at most, and one of alpha; with one scale for all there
			// is that of alpha alone.
			limit := 0x1p-22 * sizes[k]
			if exact {
				limit = 0x1p-23 * math.Abs(y[k])
			}
			if math.Abs(x[k]-y[k]) > limit {
				t.Fatalf("%s: element %d changes by %g, want %g", w.Module.Path, k, x[k], y[k])
			}
		}
	}
}

// product64 is the change of a module, in float64, and the sums of the sizes of its terms.
func product64(l *adapter.Low) (out, sizes []float64) {
	a, b := l.Pair()
	out = make([]float64, b.Rows*a.Cols)
	sizes = make([]float64, b.Rows*a.Cols)
	for i := range b.Rows {
		for k, f := range b.RowF32(i) {
			for j, v := range a.RowF32(k) {
				x := l.Scale * float64(f) * float64(v)
				out[i*a.Cols+j] += x
				sizes[i*a.Cols+j] += math.Abs(x)
			}
		}
	}
	return out, sizes
}

// TestGGUFKinds: a Mixture of Shards and the other kinds as files of llama.cpp's act on an open model as they do
// themselves, and fold to the same weights.
func TestGGUFKinds(t *testing.T) {
	base := filepath.Join("testdata", "peft", "base-llama")
	ids := sequences(31, 2, 7).IDs
	for _, kind := range []string{"lora", "mos", "vera", "prolora", "rasa", "share"} {
		m := openModel(t, base, "cpu", lm.Options{})
		o := Options{Kind: kind, Rank: 4, RSLoRA: kind == "lora", Steps: 2, Batch: 2, LR: 0.05}
		if kind == "mos" {
			o.EquivalentRank = 2
			o.Shards = 2
			o.Private = 1
		}
		a, err := Train(t.Context(), m, sequences(31, 2, 7), o)
		if err != nil {
			t.Fatal(err)
		}

		dir, file := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "a.gguf")
		if err := a.Save(dir, false); err != nil {
			t.Fatal(err)
		}
		if _, err := ExportGGUF(t.Context(), dir, file, GGUFOptions{Model: base}); err != nil {
			t.Fatal(kind, err)
		}

		plain := logitsOf(t, m, ids)
		want := attachedLogits(t, m, a, ids)
		b, err := Open(file, m)
		if err != nil {
			t.Fatal(err)
		}
		have := attachedLogits(t, m, b, ids)
		top, moved := 0.0, 0.0
		off := 0.0
		for i := range want {
			top = max(top, math.Abs(float64(want[i])))
			moved = max(moved, math.Abs(float64(want[i]-plain[i])))
			off = max(off, math.Abs(float64(have[i]-want[i])))
		}
		if moved < 1e-3*top || off > 2e-5*top { // as in TestFamilies
			t.Errorf("%s: of %g, the adapter moves %g, the file is off by %g", kind, top, moved, off)
		}
	}
}

func attachedLogits(t *testing.T, m *lm.Model, a *Adapter, ids [][]int32) []float32 {
	t.Helper()
	undo, err := a.Attach(m)
	if err != nil {
		t.Fatal(err)
	}
	defer undo()
	return logitsOf(t, m, ids)
}

// TestGGUFTypes: factors in fewer bits have their types, and rows that no block of Q8_0 divides are F16. A file that is
// there is not replaced.
func TestGGUFTypes(t *testing.T) {
	base, dir := filepath.Join("testdata", "peft", "base-llama"), filepath.Join("testdata", "peft", "llama_alllinear")
	for _, as := range []gguf.Type{gguf.F16, gguf.BF16, gguf.Q8_0} {
		path := filepath.Join(t.TempDir(), "a.gguf")
		if _, err := ExportGGUF(t.Context(), dir, path, GGUFOptions{Model: base, Type: as}); err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, name := range f.Names() {
			info, _ := f.Info(name)
			want := as
			if as == gguf.Q8_0 && info.Cols()%32 != 0 {
				want = gguf.F16
			}
			if info.Type != want {
				t.Errorf("%s of %v: %v, want %v", name, info.Shape, info.Type, want)
			}
		}
		if _, err := ExportGGUF(t.Context(), dir, path, GGUFOptions{Model: base}); !errors.Is(err, gguf.ErrExists) {
			t.Error(err)
		}
	}

	none := filepath.Join(t.TempDir(), "x.gguf")
	if _, err := ExportGGUF(t.Context(), dir, none, GGUFOptions{}); !errors.Is(err, ErrOption) {
		t.Error(err)
	}
	other := filepath.Join("testdata", "peft", "base-gpt2")
	if _, err := ExportGGUF(t.Context(), dir, none, GGUFOptions{Model: other}); !errors.Is(err, ErrBase) {
		t.Error(err)
	}
}

// TestGGUFOfAnother: the file of another architecture, or of other sizes, is refused with the key or the tensor.
func TestGGUFOfAnother(t *testing.T) {
	peft := filepath.Join("testdata", "peft")
	file := filepath.Join(t.TempDir(), "a.gguf")
	if _, err := ExportGGUF(t.Context(), filepath.Join(peft, "llama_alllinear"), file,
		GGUFOptions{Model: filepath.Join(peft, "base-llama")}); err != nil {
		t.Fatal(err)
	}

	_, err := Inspect(t.Context(), file, filepath.Join(peft, "base-qwen2"))
	if !errors.Is(err, ggufmodel.ErrMetadata) || !strings.Contains(err.Error(), "general.architecture") {
		t.Error(err)
	}
	if _, err := Inspect(t.Context(), file, ""); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	r, err := Inspect(t.Context(), file, filepath.Join(peft, "base-llama"))
	if err != nil || r.Rank == 0 || len(r.DTypes) != 1 || r.DTypes[0] != "F32" {
		t.Error(r, err)
	}
}
