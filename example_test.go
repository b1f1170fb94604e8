package compress_test

import (
	"context"
	"fmt"
	"log"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
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

	tok := must(tokenizer.Load("testdata/nano/base"))
	calib := must(corpus.Sample(ctx, "testdata/nano/text/calib.txt", tok,
		corpus.SampleOptions{Samples: 32, SeqLen: 256}))
	test := must(corpus.Cut(ctx, "testdata/nano/text/test.txt", tok, corpus.CutOptions{SeqLen: 256}))

	before := must(model.Forward(ctx, test.IDs, lm.ForwardOptions{}))
	report := must(prune.Model(ctx, model, calib, prune.Options{Metric: prune.Wanda(), Sparsity: 0.5}))
	after := must(model.Forward(ctx, test.IDs, lm.ForwardOptions{}))
	fmt.Printf("%.0f %% zeros, loss %.2f before and %.2f after\n", 100*report.Total.Sparsity, before.Loss, after.Loss)
	// Output: 50 % zeros, loss 0.65 before and 0.77 after
}
