package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/editevalcmd"
)

func editevalCmd(a *cli.App) *cobra.Command {
	var o editevalcmd.Options
	cmd := a.Verb(cli.Verb{
		Use: "editeval PLAN.yaml --out DIR", Short: "Ask what editing costs: editors, numbers of edits and " +
			"tasks in one run",
		Long: "Carries out a plan: every editor writes growing numbers of edits into every model, and after each " +
			"number it is measured which edits still hold and what the model has lost on tasks and texts, with " +
			"paired tests against the unedited model. The plan names models (plain, pruned, mediated, with an " +
			"adapter), editors with hyper-parameters, edits, counts, seeds of the order (0 is the file's; without " +
			"seeds, --seed), tasks, data, texts, stats (the text for covariances of keys), safety (prompts to " +
			"refuse), limit and num_fewshot. DIR gets results.json, timings.json, report.html, and the samples of " +
			"every measurement. Sequences run beside each other with --workers, and on other machines that see the " +
			"same folders with compress worker; the results do not depend on it. An interrupted run is continued " +
			"with --resume, to the same files.",
		Example: "compress editeval cmd/compress/testdata/editeval/nano.yaml --dry-run\n" +
			"compress editeval cmd/compress/testdata/editeval/nano.yaml --out edited",
		Args: cobra.ExactArgs(1), Resumes: true,
		Run: func(j *cli.Job, args []string) (any, error) { return editevalcmd.Run(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "folder to write")
	o.Where.Add(f, 1, ", each with a model of its own")
	f.BoolVar(&o.DryRun, "dry-run", false, "check everything, show the plan and what it takes, and write nothing")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run; or widen a finished one")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")

	return cmd
}
