package prune_test

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/prune"
)

// Half of the weights of a small model go, by Wanda, and its loss is compared. With Options.Out the pruned
// checkpoint would be written on the way.
func ExampleModel() {
	ctx := context.Background()
	const nano = "../testdata/nano/"
	dev, err := device.Open("cpu", device.Options{})
	check(err)
	defer dev.Close()

	model, err := lm.Load(ctx, nano+"base", dev, lm.Options{})
	check(err)
	defer model.Close()

	tok, err := tokenizer.Load(nano + "base")
	check(err)
	calib, err := corpus.Sample(ctx, nano+"text/calib.txt", tok, corpus.SampleOptions{Samples: 16, SeqLen: 128})
	check(err)

	test, err := corpus.Cut(ctx, nano+"text/test.txt", tok, corpus.CutOptions{SeqLen: 128, Limit: 16})
	check(err)

	before, err := model.Forward(ctx, test.IDs, lm.ForwardOptions{})
	check(err)

	report, err := prune.Model(ctx, model, calib, prune.Options{Metric: prune.Wanda(), Sparsity: 0.5})
	check(err)
	after, err := model.Forward(ctx, test.IDs, lm.ForwardOptions{})
	check(err)

	fmt.Printf("%d matrices, sparsity %.2f\n", report.Total.Matrices, report.Total.Sparsity)
	fmt.Printf("loss %.2f before, %.2f after\n", before.Loss, after.Loss)
	// Output:
	// 28 matrices, sparsity 0.50
	// loss 0.62 before, 0.75 after
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
