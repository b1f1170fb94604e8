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
		Short: "Collect what the methods fisher and regmean need",
		Long: "Runs a model on text and writes the statistics that two merge methods weigh its parameters by: the " +
			"diagonal Fisher information (squared gradients of the loss, for fisher) or the Gram matrices of the " +
			"layers' inputs (for regmean). A recipe names the file as the model's parameter fisher or gram.",
		Example: "compress merge statistics testdata/nano/sums --kind gram --data testdata/nano/text/calib.txt " +
			"--out sums-gram.safetensors",
		Args: cobra.ExactArgs(1),
		Run:  func(j *cli.Job, args []string) (any, error) { return mergecmd.Statistics(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Kind, "kind", "", "kind; fisher, gram")
	f.StringVar(&o.Data, "data", "", "text, JSONL or token ids; to run the model on")
	f.StringVar(&o.Out, "out", "", "file to write")
	f.IntVar(&o.Samples, "samples", 256, "calibration windows to draw")
	f.IntVar(&o.SeqLen, "seqlen", 0, "tokens of a window; 0 is 2048, or the model's positions if they are fewer")
	f.StringVar(&o.Memory, "memory", "1GiB", "memory for buffers and statistics; less takes more passes over the text")
	cli.Require(cmd, "kind", "data", "out")
	cli.Inputs(cmd, "data")
	cli.OneOf(cmd, "kind", "fisher", "gram")

	return cmd
}
