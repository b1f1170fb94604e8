package search_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/merge/search"
)

// How much of a fine-tuned model is best for a text: one open number, two generations.
func ExampleRun() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "search"))
	defer os.RemoveAll(dir)

	const nano = "../../testdata/nano"
	const recipe = `merge_method: task_arithmetic
base_model: base
models:
- {model: tales, parameters: {weight: {search: [0, 1.5], start: 1}}}
`
	tok := must(tokenizer.Load(nano + "/base"))
	windows := must(corpus.Cut(ctx, nano+"/text/test.txt", tok, corpus.CutOptions{SeqLen: 64, Limit: 4}))
	loss := func(ctx context.Context, m *lm.Model) (float64, error) {
		r, err := m.Perplexity(ctx, windows, nil)
		if err != nil {
			return 0, err
		}
		return r.NLL, nil
	}

	report := must(search.Run(ctx, nano+"/recipe.yaml", []byte(recipe), filepath.Join(dir, "found"), search.Options{
		Device: cpu.New(cpu.Options{}), Generations: 2, Seed: 1,
		Aims: []search.Aim{{Name: "test", Hash: windows.Hash, Weight: 1, Loss: loss}},
	}))
	fmt.Println("a lower loss than with all of it:", report.Score < report.Start)
	// Output: a lower loss than with all of it: true
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
