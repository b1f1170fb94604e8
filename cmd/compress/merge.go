package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
)

func mergeCmd(a *cli.App) *cobra.Command {
	var o mergecmd.Options
	cmd := a.Verb(cli.Verb{
		Use: "merge RECIPE.yaml --out DIR", Short: "Merge checkpoints by a recipe",
		Long: "Merges checkpoints of one architecture by a recipe in mergekit's YAML: " + mergecmd.MethodList() +
			". Inputs are streamed " +
			"through --memory, whatever their size; the output appears when it is complete and read back, with a " +
			"model card. An " +
			"interrupted merge continues with --resume to the same bytes. --dry-run shows the plan and writes " +
			"nothing. Vocabularies that differ are united with tokenizer_source or tokenizer, as mergekit does. " +
			"A recipe with the " +
			"key experts, as mergekit-moe takes them, makes a mixture of experts.",
		Example: "compress merge recipe.yaml --out merged\ncompress merge recipe.yaml --dry-run",
		Args:    cobra.ExactArgs(1), Resumes: true,
		Check: func(j *cli.Job, _ []string) error { return mergecmd.Check(j, o) },
		Run:   func(j *cli.Job, args []string) (any, error) { return mergecmd.Run(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "folder to write; it appears when it is complete")
	f.BoolVar(&o.DryRun, "dry-run", false, "check everything, show the plan and what it takes, and write nothing")
	f.StringVar(&o.DType, "dtype", "", "element type of the output; f32, bf16, f16 or float64, empty is the recipe's")
	f.StringVar(&o.Shard, "max-shard-size", "5GB", cli.ShardHelp)
	f.StringVar(&o.Memory, "memory", "1GiB", "memory for buffers and statistics")
	f.StringVar(&o.Missing, "missing", "error", "tensors that some models lack: error, merge, copy or skip")
	f.BoolVar(&o.Truncate, "truncate-embeddings", false,
		"cut vocabularies that differ to the rows that all models have")
	f.BoolVar(&o.NonFinite, "allow-nonfinite", false,
		"take NaN and infinite values instead of refusing them; they are merged, and counted")
	f.StringVar(&o.Ties, "ties", "draw", "elements that equal the threshold of ties, breadcrumbs or sce, or of one "+
		"rank for della: draw (random ones stay), index (the first ones)")
	f.BoolVar(&o.KeepZeros, "keep-zeros", false, "leave zeros of the matrices alone: a pruned model keeps its "+
		"pattern; zeros of the base model, or of the first model where the recipe has no base")
	f.StringVar(&o.Layout, "layout", "split",
		"of a mixture of experts: split, a tensor per matrix of an expert, or fused, all experts of a layer in one")
	f.BoolVar(&o.AllowSame, "allow-same", false, "make a mixture whose experts are all the same model")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run")
	cmd.AddCommand(mergeSearchCmd(a))
	cli.MayBeEmpty(cmd, "dtype")
	cli.Complete(cmd, "max-shard-size", "none", "500MB", "2GB", "5GB")
	cli.Complete(cmd, "dtype", "f32", "bf16", "f16", "float64")
	cli.OneOf(cmd, "ties", "draw", "index")
	cli.OneOf(cmd, "layout", "split", "fused")
	cli.OneOf(cmd, "missing", "error", "merge", "copy", "skip")
	cmd.AddCommand(mergeStatisticsCmd(a))

	return cmd
}
