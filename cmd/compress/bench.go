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
		Short: "Measure this machine: operations and whole pieces of work, beside its limits",
		Long: "Times operations and whole pieces of work on drawn models and the program's own small one, and puts " +
			"each figure beside the roofline: memory bandwidth and operations per second of every instruction set, " +
			"measured in the same run. kernels: products, attention, norms, losses; merge: eight methods and a " +
			"conflict analysis on checkpoints of 44 MB; prune: scores and masks of a 4096x4096 matrix, a block with " +
			"Wanda and SparseGPT; forward: a 21.9M-parameter Llama, whole batches and generation; train: backward " +
			"passes and steps; eval, search and edit: the small model; sparse: a Llama of 489M parameters with 60 % " +
			"zeros, dense and packed in turn (2 GB of memory and of the folder for temporary files). all is " +
			"everything but sparse, with one thread and with all, which takes some minutes and 3 GB. Figures are " +
			"medians of five repetitions or more. On a busy machine trust the shares, not the times.",
		Example: "compress bench all --report before.json\n" +
			"compress bench kernels --threads 1\n" +
			"compress bench compare before.json after.json",
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		Run:  func(j *cli.Job, args []string) (any, error) { return benchcmd.Show(j, args[0], o) },
	})

	cmd.ValidArgs = benchcmd.Suites()
	cmd.Flags().DurationVar(&o.Budget, "time", 300*time.Millisecond, "time for each figure")
	cmd.Flags().StringVar(&o.Model, "model", "", "folder of a model; forward runs it instead of the drawn one")
	cli.Inputs(cmd, "model")
	cmd.AddCommand(benchCompareCmd(a))

	return cmd
}

func benchCompareCmd(a *cli.App) *cobra.Command {
	o := benchcmd.CompareOptions{}
	cmd := a.Verb(cli.Verb{
		Use: "compare BEFORE.json AFTER.json", Short: "Compare two reports of bench, figure by figure",
		Long: "Prints the ratio of every figure that both reports have, and whether it is slower or faster by more " +
			"than the tolerance and the noise: half the distance of the quartiles over the median, of both added " +
			"up. Compares the processor's time, which other programs disturb less than the clock's.",
		Example: "compress bench compare before.json after.json --check",
		Args:    cobra.ExactArgs(2),
		Run:     func(j *cli.Job, args []string) (any, error) { return benchcmd.Compare(j, args[0], args[1], o) },
	})

	f := cmd.Flags()
	f.Float64Var(&o.Tolerance, "tolerance", 0.05, "how much slower is still the same")
	f.BoolVar(&o.Wall, "wall", false, "compare the clock's time")
	f.BoolVar(&o.Check, "check", false, "fail if a figure is slower")

	return cmd
}
