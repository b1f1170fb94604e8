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

// A recipe needs no file: a spec is the same as a Go value, here with one weight for each part of the layers. The
// recipe's text is that of a file.
func ExampleNew() {
	const nano = "../testdata/nano/"
	recipe, err := merge.New(merge.Spec{
		Method: "slerp",
		Base:   nano + "sums",
		Models: []merge.Input{{Model: nano + "sums"}, {Model: nano + "news"}},
		Settings: merge.Settings{"t": []merge.Rule{
			{Filter: "self_attn", Value: []float64{0, 0.5, 1}}, // from the first layer to the last
			{Value: 0.5},
		}},
		DType: "bfloat16",
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(recipe.Text()))

	plan, err := merge.Check(context.Background(), recipe, merge.Options{}) // or Models, which writes a folder
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(plan.Method, plan.Tensors)
	// Output:
	// merge_method: slerp
	// base_model: ../testdata/nano/sums
	// models:
	//   - model: ../testdata/nano/sums
	//   - model: ../testdata/nano/news
	// dtype: bfloat16
	// parameters:
	//   t:
	//     - filter: self_attn
	//       value: [0, 0.5, 1]
	//     - value: 0.5
	// slerp 38
}
