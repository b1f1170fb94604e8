package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/runcmd"
)

func runCmd(a *cli.App) *cobra.Command {
	var o runcmd.Options
	cmd := a.Verb(cli.Verb{
		Use:   "run PLAN.yaml [JOB...] --out DIR",
		Short: "Carry out a plan of verbs that need each other's outputs",
		Long: "Runs the jobs of a plan in the right order and as far as possible side by side, such as prune, " +
			"then merge, then evaluate. With names of jobs it runs only these and what they need. Everything " +
			"is checked before any work begins.\n\n" +
			"The plan (YAML) has version: 1, vars and jobs. A job is a verb with args and flags, written as on " +
			"the command line, and perhaps a recipe. ${jobs.NAME.out} and ${jobs.NAME.report} stand for what " +
			"another job writes, which is then done first, ${matrix.KEY} for a value of the job's matrix, " +
			"${NAME} for a variable.\n\n" +
			"The folder gets the output, the report and the log of every job, and report.json. The same " +
			"command again, also after an interruption, skips jobs whose command line, inputs and outputs have " +
			"not changed, and continues the others where their verb can.",
		Example: "compress run cmd/compress/testdata/run/nano.yaml --dry-run\n" +
			"compress run cmd/compress/testdata/run/nano.yaml --out built --workers 2",
		Args: cobra.MinimumNArgs(1), Resumes: true,
		Run: func(j *cli.Job, args []string) (any, error) {
			o.Jobs, o.Verbs = args[1:], root
			return runcmd.Run(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the results")
	f.StringArrayVar(&o.Vars, "var", nil,
		"`NAME=TEXT` value of a variable of the plan; give it several times for several")
	o.Where.Add(f, 1, ", each in a process of its own")
	f.BoolVar(&o.DryRun, "dry-run", false, "check everything, show command lines, order and cost, and write nothing")
	f.BoolVar(&o.KeepGoing, "keep-going", false,
		"after a failure go on with the jobs that do not need the failed one")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run, which happens without this flag too")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out and do everything again")

	return cmd
}
