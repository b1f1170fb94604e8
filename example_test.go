package compress_test

import (
	"context"
	"fmt"
	"log"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// Prune a model in memory and see what it cost. The README shows these lines.
func Example() {
	ctx := context.Background()
	dev := must(device.Open("auto", device.Options{}))
	model := must(lm.Load(ctx, "testdata/nano/base", dev, lm.Options{}))
	calib := must(model.Sample(ctx, "testdata/nano/text/calib.txt", corpus.SampleOptions{Samples: 32, SeqLen: 256}))
	test := must(model.Cut(ctx, "testdata/nano/text/test.txt", corpus.CutOptions{SeqLen: 256}))

	before := must(model.Perplexity(ctx, test, nil))
	report := must(prune.Model(ctx, model, calib, prune.Options{Metric: prune.Wanda(), Sparsity: 0.5}))
	after := must(model.Perplexity(ctx, test, nil))
	fmt.Printf("%.0f %% zeros, perplexity %.2f before and %.2f after\n",
		100*report.Total.Sparsity, before.Perplexity, after.Perplexity)
	// Output: 50 % zeros, perplexity 1.91 before and 2.17 after
}
