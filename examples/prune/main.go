// Command prune removes half of a model's weights with prune.Model, writes the checkpoint, and says what that
// costs on a text.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"os/signal"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/prune"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string, w io.Writer) error {
	f := flag.NewFlagSet("prune", flag.ContinueOnError)
	path := f.String("model", "testdata/nano/base", "folder of the model")
	calib := f.String("calib", "testdata/nano/text/calib.txt", "text to calibrate on")
	text := f.String("text", "testdata/nano/text/test.txt", "text to measure on")

	method := f.String("method", "wanda", "a metric's name, or expr:FORMULA")
	o := prune.Options{Sparsity: 0.5}
	out := f.String("out", "pruned", "folder to write; it appears when it is complete")
	if err := f.Parse(args); err != nil {
		return err
	}

	dev, err := device.Open("auto", device.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()

	model, err := lm.Load(ctx, *path, dev, lm.Options{})
	if err != nil {
		return err
	}
	defer model.Close()

	tok, err := tokenizer.Load(*path)
	if err != nil {
		return err
	}

	windows, errCalib := corpus.Sample(ctx, *calib, tok, corpus.SampleOptions{Samples: 16, SeqLen: 128})
	test, errText := corpus.Cut(ctx, *text, tok, corpus.CutOptions{SeqLen: 128, Limit: 16})
	if err := errors.Join(errCalib, errText); err != nil {
		return err
	}
	if o.Metric, err = prune.MetricByName(*method); err != nil {
		return err
	}

	before, err := model.Forward(ctx, test.IDs, lm.ForwardOptions{})
	if err != nil {
		return err
	}

	if o.Out, err = model.NewSaver(*out, lm.SaveOptions{}); err != nil { // finished blocks go to the disk at once
		return err
	}

	report, err := prune.Model(ctx, model, windows, o)
	if err != nil {
		return err
	}

	after, err := model.Forward(ctx, test.IDs, lm.ForwardOptions{})
	if err != nil {
		return err
	}

	_, err = fmt.Fprintf(w, "%s: %.1f %% zeros; perplexity %.2f, %.2f before\n", *method, 100*report.Total.Sparsity,
		math.Exp(after.Loss), math.Exp(before.Loss))
	return err
}
