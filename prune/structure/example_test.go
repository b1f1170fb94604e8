package structure_test

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/structure"
)

// Which decoder layer a text misses least. Saver and Restore, as above, then write the smaller model.
func ExampleChoose() {
	ctx := context.Background()
	model := must(lm.Load(ctx, "../../testdata/nano/base", cpu.New(cpu.Options{}), lm.Options{}))
	defer model.Close()

	calib := must(model.Sample(ctx, "../../testdata/nano/text/calib.txt",
		corpus.SampleOptions{Samples: 4, SeqLen: 64}))
	plan := must(structure.Choose(ctx, model, calib,
		structure.Options{Layers: structure.Share{Keep: 3}, By: structure.Influence}))

	fmt.Println("of", plan.Depth.Layers, "layers stay", plan.Depth.Kept)
	// Output: of 4 layers stay [0 1 3]
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
