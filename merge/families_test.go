package merge

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/mergetest"
)

// TestFamilies: a model of every family, merged half and half with a copy of itself, is itself to the bit, in its own
// layout.
func TestFamilies(t *testing.T) {
	root := filepath.Join("..", "lm", "testdata", "families")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) {
			dir := filepath.Join(root, e.Name())
			out, twin := filepath.Join(t.TempDir(), "out"), t.TempDir()
			if err := os.CopyFS(twin, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(dir, "config.json"))
			if err != nil {
				t.Fatal(err)
			}

			recipe := fmt.Sprintf("merge_method: linear\nmodels:\n  - {model: %s, parameters: {weight: 0.5}}\n"+
				"  - {model: %s, parameters: {weight: 0.5}}\n", dir, twin)
			r, err := Models(t.Context(), parse(t, recipe), out, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Warnings) > 0 {
				t.Errorf("%q", r.Warnings)
			}

			a := arch.OfText(text)
			want, joint := mergetest.Apart(t, a, dir)
			got, still := mergetest.Apart(t, a, out)
			if len(got) != len(want) || joint != still {
				t.Errorf("%d tensors, want %d; experts in one tensor: %v, want %v", len(got), len(want), still, joint)
			}
			for name, data := range want {
				if got[name] != data {
					t.Errorf("%s differs", name)
				}
			}
		})
	}
}
