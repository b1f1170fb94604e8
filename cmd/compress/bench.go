package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/benchcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

func benchCmd(a *cli.App) *cobra.Command {
	o := benchcmd.Options{}
	cmd := a.Verb(cli.Verb{
		Use:   "bench all|kernels|merge|prune|forward|train|eval|search|edit|sparse",
		Short: "Measure how fast this machine computes",
		Long: "Times single operations and whole pieces of work, and sets each beside the limits of the machine: " +
			"memory bandwidth and operations per second, measured in the same run. Figures are medians of at " +
			"least five repetitions. On a busy machine, trust the ratios rather than the times.\n\n" +
			"kernels: matrix products, attention, norms, losses. merge: eight methods and a conflict analysis " +
			"on checkpoints of 44 MB. prune: scores and masks of a 4096x4096 matrix, and a decoder layer with " +
			"Wanda and SparseGPT. forward: a Llama of 21.9M parameters, in batches and generating. train: " +
			"backward passes and training steps. eval, search, edit: the small model that comes with the " +
			"program.\n\n" +
			"all runs these with one thread and with all threads, in a few minutes and 3 GB. sparse stands " +
			"apart: a Llama of 489M parameters with 60 % zeros, dense and packed, which takes 2 GB of memory " +
			"and of temporary files.",
		Example: "compress bench all --report before.json\n" +
			"compress bench kernels --threads 1\n" +
			"compress bench compare before.json after.json",
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		Run:  func(j *cli.Job, args []string) (any, error) { return benchcmd.Show(j, args[0], o) },
	})

	cmd.ValidArgs = benchcmd.Suites()
	cmd.Flags().DurationVar(&o.Budget, "time", 300*time.Millisecond, "`TIME` time to spend on each figure")
	cmd.Flags().StringVar(&o.Model, "model", "",
		"`MODEL` folder of a model that forward runs instead of a random one")
	cli.Inputs(cmd, "model")
	cmd.AddCommand(benchCompareCmd(a))

	return cmd
}

func benchCompareCmd(a *cli.App) *cobra.Command {
	o := benchcmd.CompareOptions{}
	cmd := a.Verb(cli.Verb{
		Use:   "compare BEFORE.json AFTER.json",
		Short: "Compare two reports of bench",
		Long: "Prints the ratio of every figure that both reports have, and whether it got slower or faster by " +
			"more than the tolerance and the noise (half the interquartile range over the median, of both " +
			"reports added). CPU times are compared, which other programs disturb less than elapsed times.",
		Example: "compress bench compare before.json after.json --check",
		Unused:  []string{"device", "threads", "seed"},
		Args:    cobra.ExactArgs(2),
		Run:     func(j *cli.Job, args []string) (any, error) { return benchcmd.Compare(j, args[0], args[1], o) },
	})

	f := cmd.Flags()
	f.Float64Var(&o.Tolerance, "tolerance", 0.05, "`X` change that still counts as equal, 0.05 for 5 %")
	f.BoolVar(&o.Wall, "wall", false, "compare elapsed times instead of CPU times")
	f.BoolVar(&o.Check, "check", false, "exit with an error if a figure got slower")

	return cmd
}
