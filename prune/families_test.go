package prune

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/lm"
)

// TestFamilies: in a model of every family, SparseGPT by way of calibration leaves two of four weights of every matrix
// of a block, whatever else the block has, and does not touch anything else.
func TestFamilies(t *testing.T) {
	root := filepath.Join("..", "lm", "testdata", "families")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) {
			dense, out := filepath.Join(root, e.Name()), filepath.Join(t.TempDir(), "out")
			m := load(t, dense, 1, lm.Options{})
			matrices := map[string]lm.Linear{}
			for l := range m.Blocks() {
				for _, x := range m.Linears(l) {
					matrices[x.Name] = x
				}
			}

			o := Options{Metric: SparseGPT(), Pattern: Pattern{2, 4}, Update: Update{Name: SparseGPTUpdate}}
			r := prunedTo(t, m, windows(3, 9, 61), o, out)
			if len(r.Tensors) != len(matrices) {
				t.Errorf("%d matrices pruned, the model has %d", len(r.Tensors), len(matrices))
			}

			before, after := load(t, dense, 1, lm.Options{}), load(t, out, 1, lm.Options{})
			for _, name := range after.Tensors() {
				was, is := values(t, before, name), values(t, after, name)
				changed, zeros := 0, 0
				for i, v := range is {
					if v != was[i] {
						changed++
					}
					if v == 0 {
						zeros++
					}
				}

				_, matrix := matrices[name]
				if matrix && zeros < len(is)*2/5 || !matrix && changed > 0 {
					t.Errorf("%s: %d of %d zeros, %d changed", name, zeros, len(is), changed)
				}
			}
		})
	}
}
