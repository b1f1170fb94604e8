package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/democmd"
)

func demoCmd(a *cli.App) *cobra.Command {
	o := democmd.Options{Verb: func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		verb := cli.New(args, stdout, stderr)
		return verb.Execute(ctx, root(verb))
	}}

	cmd := a.Verb(cli.Verb{
		Use:   "demo",
		Short: "Try everything once on small models that come with the program",
		Long: "Writes five models of 0.5M parameters, with their texts, tasks and edits, to a folder and runs " +
			"the other verbs on them: searches a pruning metric, prunes with it, measures how fine-tuned " +
			"models conflict, merges them, trains adapters, edits facts, and evaluates every model on the same " +
			"tasks. It takes about a minute and needs no network.\n\n" +
			"Each command is shown as it runs and can be repeated by hand. All outputs stay in the folder, " +
			"with report.json and one page to open, report.html. The same device gives the same page, but for its " +
			"date " +
			"(SOURCE_DATE_EPOCH sets that).\n\n" +
			"With --model it shows a model of yours, smaller: its perplexity, three ways of pruning, a quantised " +
			"file, a " +
			"short training, three edited facts and forty questions.",
		Example: "compress demo --out demo-out\ncompress demo --quick --out small-demo\n" +
			"compress demo --model HuggingFaceTB/SmolLM2-135M-Instruct --out my-demo",
		Args: cobra.NoArgs, Resumes: true,
		Run: func(j *cli.Job, _ []string) (any, error) { return democmd.Run(j, o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "demo-out", "`DIR` folder to write")
	f.StringVar(&o.Model, "model", "",
		"`MODEL` show what the program does to this model instead: smaller steps, about ten minutes for 135M "+
			"parameters")
	f.StringVar(&o.Data, "data", "",
		"`FILE` with --model, plain text to calibrate, train and measure on (default: pages of the documentation)")
	f.BoolVar(&o.Quick, "quick", false,
		"take seconds instead of a minute: fewer candidates, methods, steps and documents, so the figures say "+
			"little")
	f.BoolVar(&o.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")

	return cmd
}
