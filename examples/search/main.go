// Command search looks with gp.Search for a formula of weights (W), gradients (G) and activations (X) that says
// which weights of a model to prune. Package prune/fitness judges candidates on the model; any gp.Fitness would
// do.
//
//	go run ./examples/search MODEL -calib calib.txt -heldout valid.txt -population 40 -generations 20
//
// MODEL is a folder in the Hugging Face layout; without it the project's own small model is searched on.
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

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/prune/fitness"
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

	f := flag.NewFlagSet("search [MODEL]", flag.ContinueOnError)
	calib := f.String("calib", "", "text or records to calibrate on (for the small model: its own)")
	text := f.String("heldout", "", "text to judge by")
	seqLen := f.Int("seqlen", 64, "tokens of a sequence")
	o := gp.Options{Parsimony: 0.001}
	f.IntVar(&o.Population, "population", 12, "formulas of a generation")
	f.IntVar(&o.Generations, "generations", 3, "generations after the first")
	if err := f.Parse(args); err != nil {
		return err
	}

	if !own {
		*calib = cmp.Or(*calib, "testdata/nano/text/calib.txt")
		*text = cmp.Or(*text, "testdata/nano/text/valid.txt")
	}
	if *calib == "" || *text == "" {
		return errors.New("name the text to calibrate on with -calib, and that to judge by with -heldout")
	}

	dev, err := device.Open("auto", device.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()

	tok, err := tokenizer.Load(path)
	if err != nil {
		return err
	}

	open := func(ctx context.Context) (*lm.Model, error) { return lm.Load(ctx, path, dev, lm.Options{}) }
	subject := fitness.Subject{Name: path, Open: open}
	subject.Calib, err = corpus.Sample(ctx, *calib, tok, corpus.SampleOptions{Samples: 8, SeqLen: *seqLen})
	if err != nil {
		return err
	}

	heldout, err := corpus.Sample(ctx, *text, tok, corpus.SampleOptions{Samples: 24, SeqLen: *seqLen})
	if err != nil {
		return err
	}

	sets, err := fitness.Divide(heldout, 12, 4, 8, 0) // the last are not looked at by the search
	if err != nil {
		return err
	}

	subject.Search = sets[0]
	subject.Select = sets[1]
	subject.Test = sets[2]
	judge, err := fitness.NewJudge(ctx, []fitness.Subject{subject},
		fitness.Options{Settings: []fitness.Setting{{Sparsity: 0.6}}, Windows: 8})
	if err != nil {
		return err
	}
	defer judge.Close()

	ladder, err := fitness.NewLadder(ctx, judge.ID(), judge.All, fitness.LadderOptions{})
	if err != nil {
		return err
	}

	o.Probe, o.FitnessID = judge.Probe(), judge.ID()
	result, err := gp.Search(ctx, gp.PaperGrammar(), ladder, o)
	if err != nil {
		return err
	}

	_, err = fmt.Fprintf(w, "%d formulas, best: %s (Wanda's metric is 1, the dense model 0): %.3f; %s\n",
		result.Counts.Evaluated, result.Best.Tree, result.Best.Quality, result.Stopped)
	return err
}
