package prune_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

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

// Two ways of pruning, at one sparsity and one pattern, beside each other: the lowest perplexity of each target, and
// how sure the difference to the next one is. With Resume, another call in the same folder takes what is finished.
func ExampleCompare() {
	ctx := context.Background()
	const nano = "../testdata/nano/"
	dev, err := device.Open("cpu", device.Options{})
	check(err)
	defer dev.Close()

	model, err := lm.Load(ctx, nano+"base", dev, lm.Options{Stream: true})
	check(err)
	defer model.Close()

	tok, err := tokenizer.Load(nano + "base")
	check(err)
	calib, err := corpus.Sample(ctx, nano+"text/calib.txt", tok, corpus.SampleOptions{Samples: 8, SeqLen: 64})
	check(err)
	test, err := corpus.Cut(ctx, nano+"text/test.txt", tok, corpus.CutOptions{SeqLen: 64, Limit: 12})
	check(err)

	dir, err := os.MkdirTemp("", "compare")
	check(err)
	defer os.RemoveAll(dir)

	list, err := prune.Contenders("magnitude,wanda+sparsegpt", "0.6,2:4", prune.Options{})
	check(err)
	r, err := prune.Compare(ctx, model, calib, test, list, prune.CompareOptions{Dir: filepath.Join(dir, "compared")})
	check(err)

	for _, target := range r.Targets() {
		for _, run := range r.Of(target) {
			if run.Versus == nil {
				fmt.Println(target, run.Method, "is best")
			} else if run.Versus.Adjusted < 0.05 {
				fmt.Println(target, run.Method, "is worse than", run.Versus.Best)
			}
		}
	}
	// Output:
	// 0.6 magnitude is worse than wanda+sparsegpt
	// 0.6 wanda+sparsegpt is best
	// 2:4 magnitude is worse than wanda+sparsegpt
	// 2:4 wanda+sparsegpt is best
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// A checkpoint folder is pruned into another one, which any tool loads.
func ExampleFolder() {
	ctx := context.Background()
	const nano = "../testdata/nano/"
	dev, err := device.Open("cpu", device.Options{})
	check(err)
	defer dev.Close()

	dir, err := os.MkdirTemp("", "pruned")
	check(err)
	defer os.RemoveAll(dir)

	o := prune.Options{Metric: prune.Wanda(), Sparsity: 0.5}
	report, err := prune.Folder(ctx, nano+"base", filepath.Join(dir, "half"), dev, o, prune.FolderOptions{
		Calib: nano + "text/calib.txt", Sample: corpus.SampleOptions{Samples: 32, SeqLen: 256},
	})
	check(err)

	text := nano + "text/test.txt"
	cut := lm.PerplexityOptions{Cut: corpus.CutOptions{SeqLen: 256}}
	before, err := lm.Perplexity(ctx, nano+"base", text, dev, cut)
	check(err)
	after, err := lm.Perplexity(ctx, filepath.Join(dir, "half"), text, dev, cut)
	check(err)
	fmt.Printf("%.0f %% zeros, perplexity %.2f before and %.2f after\n", 100*report.Total.Sparsity, before.Perplexity,
		after.Perplexity)
	// Output: 50 % zeros, perplexity 1.91 before and 2.17 after
}
