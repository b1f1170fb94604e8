package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/lm/corpus"
)

func pplCmd(a *cli.App) *cobra.Command {
	var o perplexity.Options
	cmd := a.Verb(cli.Verb{
		Use:   "ppl MODEL --data FILE",
		Short: "Measure the perplexity of a model on a text",
		Long: "Prints the perplexity, the exponential of the mean negative log-likelihood per token, with its " +
			"standard error.\n\n" +
			"By default the text is cut into sequences of --seqlen tokens that do not overlap, as papers on " +
			"pruning do. With --convention rolling every token is predicted once, with as much context as " +
			"fits: sequences overlap by --seqlen minus --stride.\n\n" +
			"--answers scores only the answers of records with prompt and completion, or with messages, which go " +
			"through the chat template: the tokens that lora train learns from the same file, each record a sequence " +
			"of its own. The loss is that of lora train --eval before its first step.\n\n" +
			"--against compares with another model of the same vocabulary, such as the one that this was made of: " +
			"the mean KL divergence of the next token's distribution, KL(other ‖ this), how often both have the same " +
			"top token, and a paired test of the losses. --kv is about this model, the other keeps F32, so that " +
			"ppl MODEL --kv int8 --against MODEL says what 8 bits cost.",
		Example: "compress ppl ./my-model --data test.txt --seqlen 256\n" +
			"compress ppl MODEL --data chats.jsonl --answers\n" +
			"compress ppl small.Q4_K_M.gguf --data FILE --against MODEL",
		Habit: []string{"data"},
		Args:  cobra.ExactArgs(1),
		Run:   func(j *cli.Job, args []string) (any, error) { return perplexity.Perplexity(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Data, "data", "",
		"`FILE` plain text, JSONL, Parquet, Arrow, a folder of such, or token ids (.safetensors or .json); or "+
			strings.Join(cli.DatasetNames(), ", ")+" by name")
	f.IntVar(&o.Cut.SeqLen, "seqlen", 0,
		"`N` tokens per sequence (default: 2048 or the model's context, whichever is smaller; with --answers "+
			"512 in place of 2048, as lora train)")
	f.IntVar(&o.Cut.Stride, "stride", 0,
		"`N` rolling: tokens that each further sequence predicts (default: as many as fit)")
	f.StringVar(&o.Convention, "convention", string(corpus.Window),
		"`NAME` how the text is cut: window (sequences that do not overlap) or rolling")
	f.IntVar(&o.Cut.Limit, "limit", 0, "`N` use only the first N sequences (default: all)")
	cli.ComputeFlags(cmd, &o.Compute)
	cli.KVFlag(cmd, &o.Compute)
	cli.PositionsFlag(cmd, &o.Compute)
	openmodel.ExpertsFlag(cmd, &o.Experts)
	f.StringVar(&o.Adapter, "adapter", "", "`ADAPTER` apply this adapter first")
	f.StringVar(&o.Against, "against", "", "`MODEL` compare with this model on the same text")
	f.BoolVar(&o.Answers.On, "answers", false,
		"score only the answers of records, as lora train does; records of text alone count whole")
	f.StringVar(&o.Answers.Template, "chat-template", "", "`FILE` chat template to use instead of the tokenizer's")
	cli.Require(cmd, "data")
	cli.OneOf(cmd, "convention", string(corpus.Window), string(corpus.Rolling))
	cli.Inputs(cmd, "data", "adapter", "against", "chat-template")
	cli.Texts(cmd, cli.ToMeasure, "data")

	return cmd
}
