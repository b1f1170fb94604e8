package merge

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// benchRecipes are the methods of the speed table, on models base, m1 and m2 of a folder.
var benchRecipes = map[string]string{
	"linear": "models: [{model: D/base, parameters: {weight: 0.4}}, {model: D/m1, parameters: {weight: " +
		"0.4}}, {model: D/m2, parameters: {weight: 0.4}}]",
	"slerp": "base_model: D/base\nmodels: [{model: D/base}, {model: D/m1}]\nparameters: {t: 0.35}",
	"task_arithmetic": "base_model: D/base\nmodels: [{model: D/m1, parameters: {weight: 0.5}}, {model: D/m2, " +
		"parameters: {weight: 0.5}}]",
	"ties": "base_model: D/base\nmodels: [{model: D/m1, parameters: {weight: 0.5, density: 0.5}}, " +
		"{model: D/m2, parameters: {weight: 0.5, density: 0.5}}]",
	"breadcrumbs": "base_model: D/base\nmodels: [{model: D/m1, parameters: {weight: 0.5, density: 0.5}}, " +
		"{model: D/m2, parameters: {weight: 0.5, density: 0.5}}]",
	"dare_ties": "base_model: D/base\nmodels: [{model: D/m1, parameters: {weight: 0.5, density: 0.5}}, " +
		"{model: D/m2, parameters: {weight: 0.5, density: 0.5}}]",
	"model_stock": "base_model: D/base\nmodels: [{model: D/m1}, {model: D/m2}]",
	"sce":         "base_model: D/base\nmodels: [{model: D/m1}, {model: D/m2}]\nparameters: {select_topk: 0.2}",
}

// BenchmarkModels merges the folder that COMPRESS_MERGE_BENCH names, which holds checkpoints base, m1 and m2,
// or else the project's tiny experts.
func BenchmarkModels(b *testing.B) {
	dir := os.Getenv("COMPRESS_MERGE_BENCH")
	if dir == "" {
		dir = b.TempDir()
		for to, from := range map[string]string{"base": "base", "m1": "sums", "m2": "news"} {
			if err := os.CopyFS(filepath.Join(dir, to), os.DirFS(nano+from)); err != nil {
				b.Fatal(err)
			}
		}
	}

	for method, rest := range benchRecipes {
		b.Run(method, func(b *testing.B) {
			text := "merge_method: " + method + "\ndtype: bfloat16\n" + strings.ReplaceAll(rest, "D/", dir+"/")
			var bytes int64
			for i := 0; b.Loop(); i++ {
				out := filepath.Join(b.TempDir(), fmt.Sprint(i))
				report, err := Models(b.Context(), parse(b, text), out, Options{})
				if err != nil {
					b.Fatal(err)
				}

				bytes = report.BytesIn + report.BytesOut
				b.StopTimer()
				if err := os.RemoveAll(out); err != nil {
					b.Fatal(err)
				}

				b.StartTimer()
			}

			b.SetBytes(bytes)
		})
	}
}
