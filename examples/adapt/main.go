// Command adapt trains an adapter for a model with lora.Train, saves it, and continues a prompt with it.
//
//	go run ./examples/adapt MODEL -kind lora -data train.jsonl -steps 200 -seqlen 512 -prompt "Dear" -out adapter
//
// MODEL is a folder in the Hugging Face layout, which stays as it is; without it the project's own small model is
// adapted. PEFT loads an adapter of kind lora.
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
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/lora"
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

	f := flag.NewFlagSet("adapt [MODEL]", flag.ContinueOnError)
	data := f.String("data", "", "text or records to train on (for the small model: its own)")
	seqLen := f.Int("seqlen", 64, "tokens of a sequence")
	prompt := f.String("prompt", "Wanda Thorne works as a", "text to continue")
	out := f.String("out", "adapter", "folder to write")
	o := lora.Options{Schedule: "cosine"}
	f.Float64Var(&o.LR, "lr", 5e-3, "learning rate at its height")
	f.StringVar(&o.Kind, "kind", "mos", "mos, lora, vera or prolora")
	f.IntVar(&o.Steps, "steps", 20, "steps")
	f.StringVar(&o.StateDir, "state", "", "folder for what the same command goes on from after an interruption")
	if err := f.Parse(args); err != nil {
		return err
	}

	if !own {
		*data = cmp.Or(*data, "testdata/nano/text/calib.txt")
	}
	if *data == "" {
		return errors.New("name the text to train on with -data")
	}

	o.Resume = o.StateDir != ""
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

	tok, err := tokenizer.Load(path)
	if err != nil {
		return err
	}

	windows, err := corpus.Cut(ctx, *data, tok, corpus.CutOptions{SeqLen: *seqLen})
	if err != nil {
		return err
	}

	adapter, err := lora.Train(ctx, model, windows, o)
	if err != nil {
		return err
	}

	if err := adapter.Save(*out, false); err != nil { // false: refuse to replace another one
		return err
	}

	steps := adapter.Report().Steps
	fmt.Fprintf(w, "%s: %d parameters, loss %.2f to %.2f in %d steps\n", adapter.Kind(), adapter.Trainable(),
		steps[0].Loss, steps[len(steps)-1].Loss, len(steps))
	// the model answers with it, until the function that this returns is called
	if _, err := adapter.Attach(model); err != nil {
		return err
	}

	ids, err := tok.Encode(*prompt, tokenizer.EncodeOptions{})
	if err != nil {
		return err
	}

	next, err := model.Generate(ctx, ids, lm.GenerateOptions{MaxTokens: 8})
	fmt.Fprintf(w, "%s%s\n", *prompt, tok.Decode(next, true))
	return err
}
