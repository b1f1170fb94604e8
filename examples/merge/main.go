// Command merge makes one checkpoint of several with merge.Models, by a recipe in mergekit's YAML.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"

	"github.com/modelcompress/compress/merge"
)

// ties is the recipe without -recipe: two experts with one base.
var ties = merge.Spec{
	Method: "ties",
	Base:   "testdata/nano/base",
	Models: []merge.Input{
		{Model: "testdata/nano/sums", Settings: merge.Settings{"weight": 1, "density": 0.5}},
		{Model: "testdata/nano/news", Settings: merge.Settings{"weight": 1, "density": 0.5}},
	},
	DType: "bfloat16",
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string, w io.Writer) error {
	f := flag.NewFlagSet("merge", flag.ContinueOnError)
	file := f.String("recipe", "", "YAML file; empty: the one above")
	out := f.String("out", "merged", "folder to write; it appears when it is complete")
	o := merge.Options{}
	f.Int64Var(&o.Memory, "memory", 256<<20, "bytes for buffers, whatever the models' size")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted merge")
	if err := f.Parse(args); err != nil {
		return err
	}

	recipe, err := merge.New(ties)
	if *file != "" {
		recipe, err = merge.Read(*file)
	}
	if err != nil {
		fmt.Fprint(w, merge.Excerpts(err)) // the lines that are at fault, if it is the recipe
		return err
	}

	plan, err := merge.Check(ctx, recipe, o) // reads headers only, and writes nothing
	if err != nil {
		return err
	}

	fmt.Fprintf(w, "%s of %d tensors, %d bytes\n", plan.Method, plan.Tensors, plan.BytesOut)
	report, err := merge.Models(ctx, recipe, *out, o)
	if err != nil {
		return err
	}

	for _, warning := range report.Warnings {
		fmt.Fprintln(w, "warning:", warning)
	}

	_, err = fmt.Fprintf(w, "%d parameters of %d models as %v in %s\n", report.Parameters, len(report.Models),
		report.DTypes, *out)
	return err
}
