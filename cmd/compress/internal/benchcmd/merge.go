package benchcmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/mediate"
	"github.com/modelcompress/compress/safetensors"
)

// mergeRecipes are the methods that are timed, on models in the folders BASE, ONE and TWO.
var mergeRecipes = []struct{ method, rest string }{
	{"linear", "models: [{model: BASE, parameters: {weight: 0.4}}, {model: ONE, parameters: {weight: 0.4}}, {model: " +
		"TWO, parameters: {weight: 0.4}}]"},
	{"slerp", "base_model: BASE\nmodels: [{model: BASE}, {model: ONE}]\nparameters: {t: 0.35}"},
	{"task_arithmetic", "base_model: BASE\nmodels: [{model: ONE, parameters: {weight: 0.5}}, {model: TWO, " +
		"parameters: {weight: 0.5}}]"},
	{"model_stock", "base_model: BASE\nmodels: [{model: ONE}, {model: TWO}]"},
	{"ties", "base_model: BASE\nmodels: [{model: ONE, parameters: {weight: 0.5, density: 0.5}}, {model: TWO, " +
		"parameters: {weight: 0.5, density: 0.5}}]"},
	{"dare_ties", "base_model: BASE\nmodels: [{model: ONE, parameters: {weight: 0.5, density: 0.5}}, {model: TWO, " +
		"parameters: {weight: 0.5, density: 0.5}}]"},
	{"breadcrumbs", "base_model: BASE\nmodels: [{model: ONE, parameters: {weight: 0.5, density: 0.5}}, {model: TWO, " +
		"parameters: {weight: 0.5, density: 0.5}}]"},
	{"sce", "base_model: BASE\nmodels: [{model: ONE}, {model: TWO}]\nparameters: {select_topk: 0.2}"},
}

// mergeCases merge random checkpoints of 44 MB, from the page cache to a file that is synced and read back, as
// merge does it; and measure their conflict. Bytes are those read and written once.
func mergeCases(ctx context.Context, dev kernels.Device, b *bed, _ Options) (cases []timed, err error) {
	return mixedCases(ctx, dev, b, small)
}

func mixedCases(ctx context.Context, dev kernels.Device, b *bed, s shape) (cases []timed, err error) {
	base := ""
	var names []string
	for i, word := range []string{"BASE", "ONE", "TWO"} {
		dir, err := b.random(s, safetensors.BF16, i)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			base = dir
		}

		names = append(names, word, strconv.Quote(dir))
	}

	size, err := dataSize(base)
	if err != nil {
		return nil, err
	}

	place := strings.NewReplacer(names...)
	out := filepath.Join(b.dir, "merged")
	workers := max(dev.Info().Threads, 1)
	for _, c := range mergeRecipes {
		text := "merge_method: " + c.method + "\ndtype: bfloat16\n" + place.Replace(c.rest) + "\n"
		r, err := merge.Parse("recipe.yaml", []byte(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.method, err)
		}

		models := 3.0
		if c.method == "slerp" {
			models = 2
		}

		cases = append(cases, timed{
			name: "merge " + c.method, bytes: (models + 1) * size,
			run:   func() error { _, err := merge.Models(ctx, r, out, merge.Options{Threads: workers}); return err },
			after: func() error { return os.RemoveAll(out) },
		})
	}

	r, err := merge.Parse("recipe.yaml",
		[]byte(place.Replace("merge_method: mediate\nbase_model: BASE\nmodels: [{model: ONE}, {model: TWO}]\n")))
	return append(cases, timed{
		name: "conflict of two models", bytes: 3 * size,
		run: func() error {
			_, err := mediate.Conflict(ctx, r, mediate.ConflictOptions{Threads: workers})
			return err
		},
	}), err
}

// dataSize is how many bytes the tensors of a checkpoint take.
func dataSize(dir string) (float64, error) {
	d, err := safetensors.OpenDir(dir)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	return float64(d.DataSize()), nil
}
