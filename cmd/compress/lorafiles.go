package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/loracmd"
	"github.com/modelcompress/compress/lora"
)

func loraFoldCmd(a *cli.App) *cobra.Command {
	var o loracmd.FoldOptions
	cmd := a.Verb(cli.Verb{
		Use: "fold MODEL --adapter DIR --out DIR", Short: "Put an adapter into the weights of its base",
		Long: "Writes the model with the adapter folded into its weights: LoRA with all the options of PEFT, or " +
			"Mixture of Shards. Weights keep their element types; sums are made in float32 or better and rounded " +
			"once. Memory stays below 1 GiB beside the adapter, whatever the model's size. A tied head that the " +
			"adapter does not share is untied. The table says how many weights of each tensor moved, which is few " +
			"where a change is smaller than the rounding.",
		Example: "compress lora fold testdata/nano/base --adapter my-adapter --out folded",
		Args:    cobra.ExactArgs(1), Resumes: true,
		Run: func(j *cli.Job, args []string) (any, error) { return loracmd.Fold(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Adapter, "adapter", "", "folder of an adapter")
	f.StringVar(&o.Out, "out", "", "folder to write; it appears when it is complete")
	f.StringVar(&o.Shard, "max-shard-size", "keep", cli.ShardHelp+", keep for the source's files")
	f.BoolVar(&o.Safe, "safe", false, "round the change to the base's element type before it is added, as PEFT's "+
		"safe_merge does")
	f.BoolVar(&o.KeepZeros, "keep-zeros", false,
		"leave zeros of the matrices alone: a pruned model keeps its pattern; the change loses what it has there")
	f.BoolVar(&o.OtherBase, "allow-other-base", false,
		"take an adapter that was trained on other weights, if its shapes fit")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run")
	cli.Complete(cmd, "max-shard-size", "keep", "none", "500MB", "2GB", "5GB")
	cli.Require(cmd, "adapter", "out")
	cli.Inputs(cmd, "adapter")

	return cmd
}

func loraCombineCmd(a *cli.App) *cobra.Command {
	var o loracmd.CombineOptions
	cmd := a.Verb(cli.Verb{
		Use: "combine A B --out DIR", Short: "Make one adapter of several",
		Long: "Combines adapters as PEFT does: cat is exact and adds the ranks up; svd is the best approximation of " +
			"a rank; linear, ties, dare_linear, dare_ties and magnitude_prune work on the factors and need one " +
			"rank; with _svd at the end they work on the changes themselves. One adapter with weight 1 comes back " +
			"as it is. Adapters with DoRA, trained biases, rows or modules cannot be combined.",
		Example: "compress lora combine first second --method ties --density 0.5 --weights 1,0.5 --out both",
		Args:    cobra.MinimumNArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return loracmd.Combine(j, args, o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Method, "method", "cat", "method; "+strings.Join(lora.CombineMethods(), ", "))
	f.StringVar(&o.Weights, "weights", "",
		"weights of what is combined; of the adapters, with commas between, 1 each by default")
	f.Float64Var(&o.Density, "density", 0,
		"share of values that count; ties, dare and magnitude_prune keep it, 1 is all")
	f.StringVar(&o.Sign, "majority-sign", "", "how ties elects signs: total (default) or frequency")
	f.IntVar(&o.Rank, "rank", 0, "rank of the adapter; for svd and the methods that end in _svd, 0 is the largest "+
		"of the adapters")
	f.StringVar(&o.Model, "model", "", "folder of a model; the base, needed where an adapter does not say its "+
		"modules itself")
	f.StringVar(&o.DType, "dtype", "f32", "element type of the output; f32, bf16 or f16")
	f.StringVar(&o.Out, "out", "", "folder to write; it appears when it is complete")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	cli.Require(cmd, "out")
	cli.Inputs(cmd, "model")
	cli.OneOf(cmd, "method", lora.CombineMethods()...)
	cli.OneOf(cmd, "majority-sign", "total", "frequency")
	cli.OneDType(cmd, "dtype")

	return cmd
}

func loraExportCmd(a *cli.App) *cobra.Command {
	var o loracmd.ExportOptions
	cmd := a.Verb(cli.Verb{
		Use: "export ADAPTER --out DIR", Short: "Write an adapter as a LoRA that other tools load",
		Long: "Writes an adapter of any kind in the form of PEFT's LoRA, with the configuration keys only that " +
			"every version knows. A Mixture of Shards loses nothing by it: its factors are put together by copying, " +
			"with rank and alpha unchanged, so the file is larger by the ratio of rank to equivalent rank.",
		Example: "compress lora export my-mos --out my-lora",
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return loracmd.Export(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "folder to write; it appears when it is complete")
	f.StringVar(&o.Model, "model", "", "folder of a model; the base, needed where an adapter does not say its "+
		"modules itself")
	f.StringVar(&o.DType, "dtype", "f32", "element type of the output; f32, bf16 or f16")
	f.IntVar(&o.Rank, "rank", 0, "rank of the adapter; it is cut to this, the best approximation there is, 0 "+
		"keeps the rank")
	f.BoolVar(&o.WithExperts, "with-experts", false,
		"export factors for experts beside a shared expert too, which PEFT 0.21 passes over")
	f.BoolVar(&o.Bake, "bake", false, "put the scale into B, for tools that do not scale as PEFT does")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	cli.Require(cmd, "out")
	cli.Inputs(cmd, "model")
	cli.OneDType(cmd, "dtype")

	return cmd
}

func loraExtractCmd(a *cli.App) *cobra.Command {
	var o loracmd.ExtractOptions
	cmd := a.Verb(cli.Verb{
		Use: "extract BASE TUNED --rank R --out DIR", Short: "Make a LoRA of the difference of two models",
		Long: "Writes the LoRA that leads from BASE to TUNED: the difference of each matrix, cut to a rank by its " +
			"singular values. The table says how much of it the rank keeps, and which other tensors differ. One " +
			"matrix is in memory at a time.",
		Example: "compress lora extract testdata/nano/base tuned --rank 8 --out difference",
		Args:    cobra.ExactArgs(2),
		Run:     func(j *cli.Job, args []string) (any, error) { return loracmd.Extract(j, args[0], args[1], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "folder to write; it appears when it is complete")
	f.IntVar(&o.Rank, "rank", 0, "rank of the adapter")
	f.StringSliceVar(&o.Targets, "targets", nil,
		"matrices to change; names with commas between, all linears of the blocks by default")
	f.StringVar(&o.DType, "dtype", "f32", "element type of the output; f32, bf16 or f16")
	f.BoolVar(&o.Whole, "whole", false,
		"keep other tensors that differ (norms, tables, biases) as they are, as modules_to_save")
	f.BoolVar(&o.Exact, "exact", false, "whole decompositions instead of sketches; slower")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	cli.CompleteList(cmd, "targets", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
	cli.Require(cmd, "rank", "out")
	cli.OneDType(cmd, "dtype")

	return cmd
}

func loraInspectCmd(a *cli.App) *cobra.Command {
	model := ""
	cmd := a.Verb(cli.Verb{
		Use: "inspect DIR...", Short: "Show what adapters hold",
		Long: "Reads an adapter, checks its files against each other, and shows its kind, ranks, scales, the size " +
			"of its changes and what else it holds. With --model everything must fit that base, and the first " +
			"tensor that does not is named. Of several adapters it shows the memory that they take together, and " +
			"that of as many plain LoRAs.",
		Example: "compress lora inspect my-adapter --model testdata/nano/base\ncompress lora inspect first second third",
		Args:    cobra.MinimumNArgs(1),
		Run: func(j *cli.Job, args []string) (any, error) {
			if len(args) > 1 {
				return loracmd.InspectAll(j, args, model)
			}
			return loracmd.Inspect(j, args[0], model)
		},
	})

	cmd.Flags().StringVar(&model, "model", "", "folder of a model; the base that the adapter must fit")
	cli.Inputs(cmd, "model")
	return cmd
}
