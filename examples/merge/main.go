// Command merge makes one checkpoint of a base and its fine-tuned models with merge.Models, by TIES or by a recipe in
// mergekit's YAML.
//
//	go run ./examples/merge BASE TUNED TUNED -out merged
//	go run ./examples/merge -recipe recipe.yaml -out merged
//
// The models are folders in the Hugging Face layout, or names on the hub whose files are in its cache; without any the
// project's own small ones are merged.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/modelcompress/compress/merge"
)

// ties is the recipe without -recipe: fine-tuned models of one base, of whose changes the larger half counts.
func ties(base string, tuned []string) merge.Spec {
	spec := merge.Spec{Method: "ties", Base: base}
	for _, model := range tuned {
		input := merge.Input{Model: model, Settings: merge.Settings{"weight": 1, "density": 0.5}}
		spec.Models = append(spec.Models, input)
	}
	return spec
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string, w io.Writer) error {
	models := []string{"testdata/nano/base", "testdata/nano/sums", "testdata/nano/news"}
	named := 0
	for named < len(args) && !strings.HasPrefix(args[named], "-") {
		named++
	}
	if named > 0 {
		models, args = args[:named], args[named:]
	}

	f := flag.NewFlagSet("merge [BASE TUNED...]", flag.ContinueOnError)
	file := f.String("recipe", "", "YAML file, instead of TIES")
	out := f.String("out", "merged", "folder to write; it appears when it is complete")
	o := merge.Options{}
	f.Int64Var(&o.Memory, "memory", 256<<20, "bytes for buffers, whatever the models' size")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted merge")
	if err := f.Parse(args); err != nil {
		return err
	}

	recipe, err := merge.New(ties(models[0], models[1:]))
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
