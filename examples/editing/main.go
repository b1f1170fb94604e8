// Command editing writes facts into a model with two editors and says with editeval.Run how many of them hold
// and what the model loses elsewhere. The model on the disk stays as it is.
//
//	go run ./examples/editing MODEL -edits facts.json -task my-task.yaml -count 10 -dir study
//
// MODEL is a folder in the Hugging Face layout; without it the project's own small model is edited.
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

	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
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

	f := flag.NewFlagSet("editing [MODEL]", flag.ContinueOnError)
	edits := f.String("edits", "", "facts: CounterFact, zsRE or EasyEdit JSON (for the small model: its own)")
	task := f.String("task", "", "what must not be lost: a task file, or the name of a task whose data are here")
	count := f.Int("count", 4, "facts to write")
	o := editeval.Options{}
	f.StringVar(&o.Dir, "dir", "", "folder of results, with which an interrupted run goes on; empty: none")
	if err := f.Parse(args); err != nil {
		return err
	}

	if !own {
		*edits = cmp.Or(*edits, "testdata/nano/edits.json")
		*task = cmp.Or(*task, "testdata/nano/tasks/base.yaml")
	}
	if *edits == "" || *task == "" {
		return errors.New("name the facts with -edits, and a task with -task")
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

	plan := editeval.Plan{
		Editors: []editeval.Editor{{Method: "ft"}, {Method: "grace"}},
		Edits:   []string{*edits},
		Counts:  []int{1, *count},
		Tasks:   []editeval.Task{{Entry: *task, Limit: 20}},
		Near:    2,
	}

	report, err := editeval.Run(ctx, model, plan, o)
	if err != nil {
		return err
	}

	for _, row := range report.Models[0].Rows {
		name := row.Editor
		if name == "" {
			name = "unedited"
		}

		fmt.Fprintf(w, "%-8s %2d edits, %3.0f %% hold", name, row.Edits, 100*row.Held.Mean)
		for task, a := range row.Abilities {
			fmt.Fprintf(w, ", %s %.2f", task, a.Value)
		}

		fmt.Fprintln(w)
	}

	return nil
}
