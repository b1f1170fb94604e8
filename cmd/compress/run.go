package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/runcmd"
)

func runCmd(a *cli.App) *cobra.Command {
	var o runcmd.Options
	cmd := a.Verb(cli.Verb{
		Use: "run PLAN.yaml [JOB...] --out DIR", Short: "Carry out a plan of jobs that need each other's outputs",
		Long: "Carries out the jobs of a plan (version: 1, vars, jobs), or those that are named with what they " +
			"need. A job is a verb with args, flags and perhaps a recipe, written as on the command line; " +
			"${jobs.NAME.out} and ${jobs.NAME.report} name what another job writes, which is then done first, " +
			"${matrix.KEY} a value of the job's matrix, ${NAME} a variable. Everything is checked before any work. " +
			"DIR gets the output, the report and the log of every job, and report.json. The same command again, " +
			"also after an interruption, leaves out jobs of which neither command line nor inputs nor outputs have " +
			"changed, and continues the others where their verb can.",
		Example: "compress run cmd/compress/testdata/run/nano.yaml --dry-run\n" +
			"compress run cmd/compress/testdata/run/nano.yaml --out built --workers 2",
		Args: cobra.MinimumNArgs(1), Resumes: true,
		Run: func(j *cli.Job, args []string) (any, error) {
			o.Jobs, o.Verbs = args[1:], root
			return runcmd.Run(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "folder to write")
	f.StringArrayVar(&o.Vars, "var", nil, "NAME=TEXT, in the place of the plan's variable; several times for several")
	o.Where.Add(f, 1, "; each with a process of its own for the job")
	f.BoolVar(&o.DryRun, "dry-run", false, "check everything, show the plan and what it takes, and write nothing; "+
		"command lines and the order of the jobs")
	f.BoolVar(&o.KeepGoing, "keep-going", false,
		"after a failure go on with the jobs that do not need the one that failed")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run; the command without it does so too")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out; everything is done anew")

	return cmd
}
