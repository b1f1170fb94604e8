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
		Use: "demo", Short: "Do everything once on the small models that come with the program",
		Long: "Writes five 0.5M-parameter models with their texts, tasks and edits to --out and runs the other " +
			"verbs on them: searches a pruning metric, prunes with it, measures conflicts of fine-tuned models, " +
			"merges and mediates them, trains a Mixture of Shards, edits facts, and scores every model on the same " +
			"tasks. Each command line is shown as it runs and can be repeated. All that the verbs write stays in " +
			"--out, with report.json and one page, report.html, that is the same in every run with the same device. " +
			"Takes about a minute and needs no network.",
		Example: "compress demo --out demo-out\ncompress demo --quick --out small-demo",
		Args:    cobra.NoArgs, Resumes: true,
		Run: func(j *cli.Job, _ []string) (any, error) { return democmd.Run(j, o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "demo-out", "folder to write")
	f.BoolVar(&o.Quick, "quick", false,
		"the same in seconds: fewer candidates, methods, steps and documents, with figures that say little")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")

	return cmd
}
