package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/bench"
	"github.com/modelcompress/compress/cmd/compress/internal/shell"
)

func benchCmd(a *shell.App) *cobra.Command {
	o := bench.Options{}
	cmd := a.Verb(shell.Verb{
		Use: "bench kernels|forward|prune|sparse", Short: "Measure this machine: operations, a forward pass, pruning, packed weights",
		Long: "Times operations, the forward pass and generation of a 21.9M-parameter Llama with drawn weights, or scoring and masking of " +
			"a 4096x4096 matrix, or a Llama of 489M parameters with 60 % zeros, dense and packed in turn (sparse; it takes 2 GB of memory and of the " +
			"folder for temporary files), and puts each figure beside the roofline: peak FLOP/s and memory bandwidth, measured in the same run. " +
			"Every figure is the best of its repetitions. On a busy machine trust the shares, not the times.",
		Example: "compress bench kernels --threads 1",
		Args:    cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		Run:     func(j *shell.Job, args []string) (any, error) { return bench.Show(j, args[0], o) },
	})
	cmd.ValidArgs = bench.Suites()
	cmd.Flags().DurationVar(&o.Budget, "time", 300*time.Millisecond, "time for each figure")
	cmd.Flags().StringVar(&o.Model, "model", "", "forward: a checkpoint to run instead of the drawn one")
	shell.Inputs(cmd, "model")
	return cmd
}
