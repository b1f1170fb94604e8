package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/merging"
	"github.com/modelcompress/compress/cmd/compress/internal/shell"
)

func mergeCmd(a *shell.App) *cobra.Command {
	var o merging.Options
	cmd := a.Verb(shell.Verb{
		Use: "merge RECIPE.yaml --out DIR", Short: "Merge checkpoints by a recipe",
		Long: "Merges checkpoints of one architecture by a recipe in mergekit's YAML: " + merging.MethodList() + ". Inputs are streamed " +
			"through --memory, whatever their size; the output appears when it is complete and read back, with a model card. An " +
			"interrupted merge continues with --resume to the same bytes. --dry-run shows the plan and writes nothing. A recipe with the " +
			"key experts, as mergekit-moe takes them, makes a mixture of experts.",
		Example: "compress merge recipe.yaml --out merged\ncompress merge recipe.yaml --dry-run",
		Args:    cobra.ExactArgs(1), Resumes: true,
		Run: func(j *shell.Job, args []string) (any, error) { return merging.Run(j, args[0], o) },
	})
	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "folder to write; it appears when it is complete")
	f.BoolVar(&o.DryRun, "dry-run", false, "show tensors, bytes, memory and warnings, and write nothing")
	f.StringVar(&o.DType, "dtype", "", "element type of the output instead of the recipe's: bfloat16, float16, float32 or float64")
	f.StringVar(&o.Shard, "max-shard-size", "5GB", "largest file, e.g. 2GB or 500MiB; none for a single file")
	f.StringVar(&o.Memory, "memory", "1GiB", "memory for buffers and statistics")
	f.StringVar(&o.Missing, "missing", "error", "tensors that some models lack: error, merge, copy or skip")
	f.BoolVar(&o.Truncate, "truncate-embeddings", false, "cut vocabularies that differ to the rows that all models have")
	f.BoolVar(&o.NonFinite, "allow-nonfinite", false, "merge NaN and infinite values in the inputs, and count them")
	f.StringVar(&o.Layout, "layout", "split", "of a mixture of experts: split, a tensor per matrix of an expert, or fused, all experts of a layer in one")
	f.BoolVar(&o.AllowSame, "allow-same", false, "make a mixture whose experts are all the same model")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted merge of the same recipe and inputs")
	cmd.AddCommand(mergeSearchCmd(a))
	shell.MayBeEmpty(cmd, "dtype")
	shell.Complete(cmd, "dtype", "bfloat16", "float16", "float32", "float64")
	shell.Complete(cmd, "layout", "split", "fused")
	shell.Complete(cmd, "missing", "error", "merge", "copy", "skip")
	cmd.AddCommand(mergeStatisticsCmd(a))
	return cmd
}
