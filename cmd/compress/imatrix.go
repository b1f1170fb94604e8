package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/quantizecmd"
)

func imatrixCmd(a *cli.App) *cobra.Command {
	var o quantizecmd.ImatrixOptions
	cmd := a.Verb(cli.Verb{
		Use:   "imatrix MODEL --data FILE --out FILE",
		Short: "Measure which inputs of a model's matrices matter most",
		Long: "Runs text through a model and writes llama.cpp's importance matrix: for each input of every matrix " +
			"the sum of its squares. compress quantize --imatrix and llama-quantize take it, so that the weights " +
			"of strong inputs are rounded with less error, which matters most at four bits and less.\n\n" +
			"The text is cut into chunks of --seqlen tokens, as llama-imatrix cuts it; an unfinished last chunk is " +
			"left out. A name that ends in .dat is written in the form of before 2025. Some hundred chunks of text " +
			"like that which the model will meet are usual.",
		Example: "compress imatrix ./my-model --data calib.txt --seqlen 128 \\\n" +
			"    --out my.imatrix.gguf\n" +
			"compress imatrix MODEL --data FILE --chunks 100 --out model.imatrix.gguf",
		Habit: []string{"out"},
		Args:  cobra.ExactArgs(1),
		Check: func(*cli.Job, []string) error { return quantizecmd.CheckImatrix(o) },
		Run:   func(j *cli.Job, args []string) (any, error) { return quantizecmd.Imatrix(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Data, "data", "",
		"`FILE` text: plain text, JSONL, Parquet, Arrow, a folder of such, or token ids (.safetensors or .json); or "+
			strings.Join(cli.DatasetNames(), ", ")+" by name")
	f.StringVar(&o.Out, "out", "", "`FILE` .gguf file to write, or .dat")
	f.IntVar(&o.SeqLen, "seqlen", 512, "`N` tokens of a chunk (default: 512)")
	f.IntVar(&o.Chunks, "chunks", 0, "`N` chunks to run, from the beginning of the text (default: all)")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an importance matrix that is at --out")
	cli.Require(cmd, "data", "out")
	cli.Inputs(cmd, "data")
	cli.Texts(cmd, cli.ToLearn, "data")

	return cmd
}
