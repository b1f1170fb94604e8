package mediate_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/mediate"
)

// Two task models become a dense model and two experts: the layer in which they contradict each other most is routed,
// and of each model's difference there 3 bits an element are kept.
func ExampleMediator() {
	dir, err := os.MkdirTemp("", "mediate")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	const nano = "../../testdata/nano/"
	recipe, err := merge.New(merge.Spec{
		Method:  "mediate",
		Base:    nano + "base",
		Models:  []merge.Input{{Model: nano + "sums", Name: "sums"}, {Model: nano + "tales", Name: "tales"}},
		Mediate: &merge.Mediate{Select: "top_k: 1", Keep: "bits: 3"},
	})
	if err != nil {
		log.Fatal(err)
	}

	ctx, out := context.Background(), filepath.Join(dir, "mediated")
	if _, err := merge.Models(ctx, recipe, out, merge.Options{Mediator: mediate.Mediator()}); err != nil {
		log.Fatal(err)
	}
	experts, err := mediate.Open(ctx, out)
	if err != nil {
		log.Fatal(err)
	}
	defer experts.Close()

	fmt.Println(experts.Names())
	// Output: [sums tales]
}
