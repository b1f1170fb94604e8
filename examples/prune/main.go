// Command prune removes half of a model's weights with prune.Model, writes the checkpoint, and says what that
// costs on a text.
//
//	go run ./examples/prune MODEL -calib calib.txt -text test.txt -samples 32 -seqlen 512 -out pruned
//
// MODEL is a folder in the Hugging Face layout; without it the project's own small model is pruned.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
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
	path, own := "testdata/nano/base", false
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		path, args, own = args[0], args[1:], true
	}

	f := flag.NewFlagSet("prune [MODEL]", flag.ContinueOnError)
	calib := f.String("calib", "", "text or records to calibrate on (for the small model: its own)")
	text := f.String("text", "", "text to measure on")
	samples := f.Int("samples", 16, "calibration sequences")
	seqLen := f.Int("seqlen", 128, "tokens of a sequence")

	method := f.String("method", "wanda", "a metric's name, or expr:FORMULA")
	o := prune.Options{Sparsity: 0.5}
	out := f.String("out", "pruned", "folder to write; it appears when it is complete")
	if err := f.Parse(args); err != nil {
		return err
	}

	if !own {
		*calib = cmp.Or(*calib, "testdata/nano/text/calib.txt")
		*text = cmp.Or(*text, "testdata/nano/text/test.txt")
	}
	if *calib == "" || *text == "" {
		return errors.New("name the text to calibrate on with -calib, and that to measure on with -text")
	}

	dev, err := device.Open("auto", device.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()

	model, err := lm.Load(ctx, path, dev, lm.Options{})
	if err != nil {
		return err
	}
	defer model.Close()

	windows, errCalib := model.Sample(ctx, *calib, corpus.SampleOptions{Samples: *samples, SeqLen: *seqLen})
	test, errText := model.Cut(ctx, *text, corpus.CutOptions{SeqLen: *seqLen, Limit: 16})
	if err := errors.Join(errCalib, errText); err != nil {
		return err
	}
	if o.Metric, err = prune.MetricByName(*method); err != nil {
		return err
	}

	before, err := model.Perplexity(ctx, test, nil)
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

	after, err := model.Perplexity(ctx, test, nil)
	if err != nil {
		return err
	}

	_, err = fmt.Fprintf(w, "%s: %.1f %% zeros; perplexity %.2f, %.2f before\n", *method, 100*report.Total.Sparsity,
		after.Perplexity, before.Perplexity)
	return err
}
