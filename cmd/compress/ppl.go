package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/lm/corpus"
)

func pplCmd(a *cli.App) *cobra.Command {
	var o perplexity.Options
	cmd := a.Verb(cli.Verb{
		Use: "ppl MODEL --data FILE", Short: "Measure the perplexity of a model on a text",
		Long: "Measures perplexity, exp of the mean negative log-likelihood in nats per token, with its standard " +
			"error over windows. window: the text is cut into windows of --seqlen that do not overlap (what papers " +
			"on pruning report). rolling: every token is predicted once, windows overlap by --seqlen minus " +
			"--stride. FILE: text, JSONL, or token ids (.safetensors, .json).",
		Example: "compress ppl testdata/nano/base --data testdata/nano/text/test.txt --seqlen 256",
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return perplexity.Perplexity(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Data, "data", "", "text, JSONL or token ids")
	f.IntVar(&o.Cut.SeqLen, "seqlen", 0, "tokens of a window; 0 is 2048, or the model's positions if they are fewer")
	f.IntVar(&o.Cut.Stride, "stride", 0, "rolling: tokens that each further window predicts; 0 is as many as fit")
	f.StringVar(&o.Convention, "convention", string(corpus.Window), "window or rolling")
	f.IntVar(&o.Cut.Limit, "limit", 0, "take the first only; windows, 0 is all")
	f.BoolVar(&o.Fast, "fast", false, "round activations to BF16 where weights are BF16 and the processor has dot "+
		"products for it")
	openmodel.ExpertsFlag(cmd, &o.Experts)
	f.StringVar(&o.Adapter, "adapter", "", "folder of an adapter; it is applied first")
	cli.Require(cmd, "data")
	cli.OneOf(cmd, "convention", string(corpus.Window), string(corpus.Rolling))
	cli.Inputs(cmd, "data", "adapter")

	return cmd
}
