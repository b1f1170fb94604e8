package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
)

func mergeStatisticsCmd(a *cli.App) *cobra.Command {
	var o mergecmd.StatisticsOptions
	cmd := a.Verb(cli.Verb{
		Use:   "statistics MODEL --kind fisher|gram --data FILE --out FILE",
		Short: "Collect the statistics that the methods fisher and regmean need",
		Long: "Runs a model on text and writes what two merge methods weight its parameters by: the diagonal " +
			"Fisher information (mean squared gradients of the loss) for fisher, or the Gram matrices of the " +
			"inputs of its linear layers for regmean. A recipe names the file as the model's parameter fisher " +
			"or gram.",
		Example: "compress merge statistics testdata/nano/sums --kind gram --data testdata/nano/text/calib.txt " +
			"--out sums-gram.safetensors",
		Args: cobra.ExactArgs(1),
		Run:  func(j *cli.Job, args []string) (any, error) { return mergecmd.Statistics(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Kind, "kind", "", "`NAME` statistics to collect: fisher or gram")
	f.StringVar(&o.Data, "data", "",
		"`FILE` text to run the model on: plain text, JSONL, or token ids (.safetensors or .json)")
	f.StringVar(&o.Out, "out", "", "`FILE` .safetensors to write")
	f.IntVar(&o.Samples, "samples", 256, "`N` calibration sequences, chosen at random")
	f.IntVar(&o.SeqLen, "seqlen", 0,
		"`N` tokens per sequence (default: 2048 or the model's context, whichever is smaller)")
	f.StringVar(&o.Memory, "memory", "1GiB", "`SIZE` memory for statistics; with less, the text is read more often")
	cli.Require(cmd, "kind", "data", "out")
	cli.Inputs(cmd, "data")
	cli.OneOf(cmd, "kind", "fisher", "gram")

	return cmd
}
