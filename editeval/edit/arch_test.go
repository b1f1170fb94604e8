package edit

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// Every method writes into every architecture, and what it wrote is taken out again to the last bit; mixtures
// are refused with the reason.
func TestOracleArchitectures(t *testing.T) {
	root := os.Getenv("COMPRESS_ORACLE")
	if root == "" {
		root = "../../../shared/oracle"
	}

	entries, err := os.ReadDir(filepath.Join(root, "models"))
	if err != nil {
		t.Skip(err)
	}

	for _, e := range entries {
		dir := filepath.Join(root, "models", e.Name())
		if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
			continue
		}

		t.Run(e.Name(), func(t *testing.T) {
			m, err := lm.Load(context.Background(), dir, cpu.New(cpu.Options{}), lm.Options{})
			if err != nil {
				t.Skip(err)
			}
			defer m.Close()
			for _, name := range Methods() {
				everywhere(t, m, name)
			}
		})
	}
}

// everywhere edits a model by one method with ids that mean nothing.
func everywhere(t *testing.T, m *lm.Model, name string) {
	t.Helper()
	ctx := context.Background()
	hp, err := Defaults(name, m.Config())
	if err != nil {
		t.Fatal(err)
	}

	hp.Steps, hp.Warm = 3, true
	if name == kindWISE { // whose three steps need not lead down in models of random weights
		hp.LearningRate = 0.01
	}
	r := Encoded{
		Prompts: [][]int32{{5, 6, 7, 8}, {9, 5, 6, 7, 8}}, Lookup: []int{1, 2}, Groups: []int{1, 1},
		Target: []int32{3, 4}, KL: []int32{5, 6, 2}, KLLookup: 1,
	}
	docs := [][]int32{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {5, 6, 7, 8}}
	st, err := Collect(ctx, m, docs, hp.Layers, nil)
	if err == nil {
		var ed *Editing
		o := Options{Method: name, HParams: &hp, Statistics: st, Background: docs}
		if ed, err = New(m, o); err == nil {
			down, e := site.Linear(m, hp.Layers[0], arch.Down)
			if e != nil {
				return // ike writes nowhere
			}

			p, e := m.Param(down.Name)
			if e != nil {
				t.Fatal(e)
			}

			before := bytes.Clone(p.Buf.Bytes())
			if _, err := ed.Apply(ctx, []Encoded{r}, nil); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := ed.Undo(0); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if p, e = m.Param(down.Name); e != nil || !bytes.Equal(before, p.Buf.Bytes()) {
				t.Errorf("%s: the matrix is not what it was: %v", name, e)
			}

			ed.Close()
		}
	}

	if mixture := m.Config().Mixture[hp.Layers[0]]; mixture != errors.Is(err, ErrModel) && name != "ike" ||
		!mixture && err != nil {
		t.Errorf("%s: %v", name, err)
	}
}
