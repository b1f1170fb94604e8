package merge_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/merge"
)

// Two experts are merged with the elections of signs that TIES holds.
func ExampleModels() {
	dir, err := os.MkdirTemp("", "merge")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	recipe, err := merge.Parse("recipe.yaml", []byte(`
merge_method: ties
base_model: ../testdata/nano/base
models:
  - model: ../testdata/nano/sums
    parameters: {weight: 1, density: 0.5}
  - model: ../testdata/nano/news
    parameters: {weight: 1, density: 0.5}
dtype: float32
`))
	if err != nil {
		log.Fatal(err)
	}

	report, err := merge.Models(context.Background(), recipe, filepath.Join(dir, "merged"), merge.Options{})
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(report.Method, report.Tensors, len(report.Warnings))
	// Output: ties 38 0
}
