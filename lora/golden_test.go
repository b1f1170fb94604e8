package lora

import (
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/lm"
)

// TestGoldenAdapters: adapters that PEFT has written, one for each combination of its options
// (testdata/peft/generate.py makes them), attached, folded, and written again, compute what PEFT computes with
// them: logits of up to 10, to 1e-4, in a float32 that adds up in another order.
func TestGoldenAdapters(t *testing.T) {
	root := filepath.Join("testdata", "peft")
	list, err := filepath.Glob(filepath.Join(root, "*", "adapter_config.json"))
	if err != nil || len(list) < 12 {
		t.Fatalf("%d adapters (%v)", len(list), err)
	}

	for _, path := range list {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var c struct {
				Base string `json:"base_model_name_or_path"`
			}
			readJSON(t, path, &c)
			base := filepath.Join(root, c.Base)
			want := openTensors(t, filepath.Join(dir, "expected.safetensors"))
			check := func(how string, m *lm.Model) {
				t.Helper()
				if gap, size := farthest(logitsOf(t, m, want.ids("input_ids", 0)),
					want.floats("logits")); gap > 1e-5*max(size, 10) {
					t.Errorf("%s: logits (up to %g) differ by %g", how, size, gap)
				}
			}

			m := openModel(t, base, "cpu", lm.Options{})
			a, err := Open(dir, m)
			if err != nil {
				t.Fatal(err)
			}

			plain := filepath.Join(t.TempDir(), "plain")
			if _, err := Export(t.Context(), dir, plain, ExportOptions{Model: base}); err != nil {
				t.Fatal(err)
			}

			again, err := Open(plain, m)
			if err != nil {
				t.Fatal(err)
			}

			attached(t, m, a, check)
			attached(t, m, again, check)
			out := filepath.Join(t.TempDir(), "folded")
			if _, err := Fold(t.Context(), base, dir, out, FoldOptions{}); err != nil {
				t.Fatal(err)
			}

			check("folded", openModel(t, out, "cpu", lm.Options{}))
		})
	}
}

// attached checks a model while an adapter acts on it.
func attached(t *testing.T, m *lm.Model, a *Adapter, check func(how string, m *lm.Model)) {
	t.Helper()
	undo, err := a.Attach(m)
	if err != nil {
		t.Fatal(err)
	}
	defer undo()
	check("attached", m)
}
