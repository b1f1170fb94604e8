package merge

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// openText leaves the weight of one expert open.
const openText = `merge_method: task_arithmetic
base_model: base
models:
- {model: tales, parameters: {weight: {search: [-1, 2], start: 0}}}
`

// searchOptions measure on a few tokens.
func searchOptions(dev *cpu.Device) SearchOptions {
	ids := [][]int32{{0, 65, 12, 300, 41, 7, 9, 88}, {0, 5, 17, 99, 300, 7, 612, 3}}
	return SearchOptions{
		Device: dev, Generations: 2, Seed: 3,
		Texts: []SearchText{{Name: "ids", Hash: "x", Weight: 2, Cut: func(*lm.Model) (corpus.Windows, error) { return corpus.New(ids, "ids"), nil }}},
	}
}

// TestSearchContinuesToTheSameRecipe: interrupted after any candidate, a search ends with the same recipe and the same report,
// and the candidates' folders are gone.
func TestSearchContinuesToTheSameRecipe(t *testing.T) {
	dev := cpu.New(cpu.Options{})
	defer dev.Close()
	recipe := filepath.Join(nanoFolder, "recipe.yaml")
	whole := filepath.Join(t.TempDir(), "found")
	first, err := Search(context.Background(), recipe, []byte(openText), whole, searchOptions(dev))
	if err != nil {
		t.Fatal(err)
	}
	if first.Score > first.Start || len(first.Steps) != 9 || len(first.Values) != 1 {
		t.Errorf("%+v", first)
	}
	if _, err := Read(filepath.Join(whole, BestName)); err != nil {
		t.Error(err)
	}
	for _, stop := range []int{1, 5} {
		out := filepath.Join(t.TempDir(), "found")
		ctx, cancel := context.WithCancel(context.Background())
		o, n := searchOptions(dev), 0
		o.Each = func(SearchStep) {
			if n++; n == stop {
				cancel()
			}
		}
		if _, err := Search(ctx, recipe, []byte(openText), out, o); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		cancel()
		if _, err := Search(context.Background(), recipe, []byte(openText), out, searchOptions(dev)); !errors.Is(err, ErrExists) {
			t.Errorf("%v", err)
		}
		o = searchOptions(dev)
		o.Resume, o.Seed = true, 4
		if _, err := Search(context.Background(), recipe, []byte(openText), out, o); !errors.Is(err, ErrJournal) {
			t.Errorf("%v", err)
		}
		o.Seed = 3
		again, err := Search(context.Background(), recipe, []byte(openText), out, o)
		if err != nil {
			t.Fatal(err)
		}
		sameFolders(t, whole, out)
		if again.Recipe != first.Recipe || len(again.Steps) != len(first.Steps) {
			t.Errorf("%+v", again)
		}
		if _, err := os.Stat(filepath.Join(out, ".candidate")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v", err)
		}
	}
}

func TestSearchRefuses(t *testing.T) {
	dev := cpu.New(cpu.Options{})
	defer dev.Close()
	recipe, out := filepath.Join(nanoFolder, "recipe.yaml"), filepath.Join(t.TempDir(), "found")
	o := searchOptions(dev)
	for name, text := range map[string]string{
		"nothing open": "merge_method: linear\nmodels: [{model: base}]\n",
		"not a recipe": "merge_mehtod: linear\nx: {search: [0, 1]}\n",
	} {
		if _, err := Search(context.Background(), recipe, []byte(text), out, o); !errors.Is(err, ErrRecipe) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, bad := range map[string]func(*SearchOptions){
		"device": func(o *SearchOptions) { o.Device = nil }, "texts": func(o *SearchOptions) { o.Texts = nil },
		"weight": func(o *SearchOptions) { o.Texts[0].Weight = 0 }, "sigma": func(o *SearchOptions) { o.Sigma = 2 },
		"population": func(o *SearchOptions) { o.Population = 1 }, "memory": func(o *SearchOptions) { o.Merge.Memory = -1 },
	} {
		o := searchOptions(dev)
		bad(&o)
		if _, err := Search(context.Background(), recipe, []byte(openText), out, o); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused search left %s: %v", out, err)
	}
	missing := "merge_method: linear\nmodels: [{model: nowhere, parameters: {weight: {search: [0, 1]}}}]\n"
	if _, err := Search(context.Background(), recipe, []byte(missing), out, o); err == nil {
		t.Error("a model that is not there")
	}
}
