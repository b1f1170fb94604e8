package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/editevalcmd"
)

func editevalCmd(a *cli.App) *cobra.Command {
	var o editevalcmd.Options
	cmd := a.Verb(cli.Verb{
		Use:   "editeval PLAN.yaml --out DIR",
		Short: "Study what editing costs: editors, numbers of edits, tasks",
		Long: "Carries out a plan: every editor writes more and more edits into every model, and after each " +
			"number it is measured which edits still hold and what the model has lost on tasks and texts, with " +
			"paired tests against the unedited model.\n\n" +
			"The plan (YAML) names models (plain, pruned, mediated or with an adapter), editors with " +
			"hyper-parameters, edits, counts, seeds of the order (0 keeps that of the file; without seeds, " +
			"--seed), tasks, data, texts, stats (text for covariances), safety (prompts that should be " +
			"refused), limit and num_fewshot. The folder gets results.json, timings.json, report.html and the " +
			"samples of every measurement.\n\n" +
			"Sequences of edits run side by side with --workers, or on other machines that see the same " +
			"folders (compress worker). The results do not depend on it.",
		Example: "compress editeval cmd/compress/testdata/editeval/nano.yaml --dry-run\n" +
			"compress editeval cmd/compress/testdata/editeval/nano.yaml --out edited",
		Habit: []string{"out"},
		Args:  cobra.ExactArgs(1), Resumes: true,
		Run: func(j *cli.Job, args []string) (any, error) { return editevalcmd.Run(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the results")
	o.Where.Add(f, 1, ", each with a model of its own")
	f.BoolVar(&o.DryRun, "dry-run", false, "check everything, show the plan and what it takes, and write nothing")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run, or extend a finished one")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")

	return cmd
}
