package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/loracmd"
	"github.com/modelcompress/compress/lora"
	"github.com/modelcompress/compress/quantize"
)

func loraFoldCmd(a *cli.App) *cobra.Command {
	var o loracmd.FoldOptions
	cmd := a.Verb(cli.Verb{
		Use:   "fold MODEL --adapter DIR --out PATH",
		Short: "Merge an adapter into the weights of its base model",
		Long: "Writes the model with the adapter merged into its weights, as PEFT's merge_and_unload does. Every " +
			"kind of adapter is accepted. Weights keep their element types; sums are made in float32 or better " +
			"and rounded once.\n\n" +
			"Memory stays below 1 GiB beside the adapter. An output head that shares its weights with the " +
			"embeddings is untied if the adapter changes only one of them. The table shows how many weights of " +
			"each tensor have changed: few, where the change is smaller than the rounding.\n\n" +
			"The weights of a quantised base become floats. --to makes a GGUF file or a folder of few bits of the " +
			"folded model, as compress quantize does: sums are rounded to the base's element type (BF16, say) and " +
			"then to the few bits. It takes the room of the folded floats beside --out while it runs.",
		Example: "compress lora fold ./my-model --adapter my-adapter --out folded\n" +
			"compress lora fold MODEL --adapter my-adapter --to q4_k_m --imatrix FILE --out folded.gguf",
		Habit: []string{"adapter", "out"},
		Args:  cobra.ExactArgs(1), Resumes: true,
		Check: func(_ *cli.Job, args []string) error { return loracmd.CheckFold(args[0], o) },
		Run:   func(j *cli.Job, args []string) (any, error) { return loracmd.Fold(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Adapter, "adapter", "", "`ADAPTER` adapter to merge")
	f.StringVar(&o.Out, "out", "", "`PATH` folder for the result, or .gguf file; it appears when it is complete")
	f.StringVar(&o.To, "to", "",
		"`NAME` quantise the folded model, by a scheme of compress quantize such as q4_k_m or w4a16 (default: the "+
			"base's types)")
	f.IntVar(&o.Group, "group-size", 0,
		"`N` inputs of an output that share a scale, a multiple of 16; -1 for all (default: the scheme's own)")
	f.StringVar(&o.Imatrix, "imatrix", "",
		"`FILE` importance matrix for a GGUF file, as compress imatrix and llama-imatrix write it")
	f.StringVar(&o.Shard, "max-shard-size", "keep",
		"`SIZE` largest file, such as 2GB or 500MiB, or none for a single file (default: keep, the files of "+
			"the source)")
	cli.TensorsFlag(f, &o.Tensors)
	f.BoolVar(&o.Safe, "safe", false,
		"round the change to the base's element type before adding it, as PEFT's safe_merge does")
	f.BoolVar(&o.KeepZeros, "keep-zeros", false,
		"leave zeros zero, so a pruned model keeps its sparsity; the adapter's change there is lost")
	f.BoolVar(&o.OtherBase, "allow-other-base", false,
		"accept an adapter that was trained on other weights, if its shapes fit")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	f.BoolVar(&o.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	cli.Complete(cmd, "max-shard-size", "keep", "none", "500MB", "2GB", "5GB")
	cli.Complete(cmd, "to", quantize.SchemeNames()...)
	cli.Require(cmd, "adapter", "out")
	cli.Inputs(cmd, "adapter", "imatrix")
	cli.NotZero(cmd, "group-size")

	return cmd
}

func loraCombineCmd(a *cli.App) *cobra.Command {
	var o loracmd.CombineOptions
	cmd := a.Verb(cli.Verb{
		Use:   "combine A B --out DIR",
		Short: "Make one adapter of several",
		Long: "Combines adapters as PEFT's add_weighted_adapter does. cat is exact, and adds the ranks up. svd " +
			"is the best approximation of a given rank. linear, ties, dare_linear, dare_ties and " +
			"magnitude_prune work on the factors, and need adapters of the same rank; with _svd at the end " +
			"they work on the full changes, with _core or _knots in the space that the changes have in " +
			"common, which loses nothing: ranks may differ, and add up. tsv_core makes the directions of " +
			"different adapters orthogonal, iso makes all directions of the result equally strong.\n\n" +
			"Adapters with DoRA, or with trained biases, rows or modules, cannot be combined.",
		Example: "compress lora combine first second --method ties --density 0.5 --weights 1,0.5 --out both",
		Args:    cobra.MinimumNArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return loracmd.Combine(j, args, o) },
	})

	f := cmd.Flags()
	cli.TensorsFlag(f, &o.Tensors)
	f.StringVar(&o.Method, "method", "cat", "`NAME` how to combine: "+strings.Join(lora.CombineMethods(), ", "))
	f.StringVar(&o.Weights, "weights", "", "`LIST` weights of the adapters, such as 1,0.5 (default: 1 each)")
	f.Float64Var(&o.Density, "density", 0,
		"`X` fraction of values that ties, dare and magnitude_prune keep; they need it")
	f.StringVar(&o.Sign, "majority-sign", "", "`NAME` how ties elects signs: total or frequency (default: total)")
	f.IntVar(&o.Rank, "rank", 0,
		"`N` rank of the result, for svd and the methods that end in _svd, _core or _knots (default: the largest "+
			"rank of the adapters; for _core and _knots their sum)")
	f.StringVar(&o.Model, "model", "", "`MODEL` base model, needed where an adapter does not name its modules itself")
	f.StringVar(&o.DType, "dtype", "f32", "`TYPE` element type of the result: f32, bf16 or f16")
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the result; it appears when it is complete")
	f.BoolVar(&o.OtherBase, "allow-other-base", false,
		"accept adapters that were trained on different weights, if their shapes fit")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	cli.Require(cmd, "out")
	cli.Inputs(cmd, "model")
	cli.OneOf(cmd, "method", lora.CombineMethods()...)
	cli.NotZero(cmd, "rank")
	cli.OneOf(cmd, "majority-sign", "total", "frequency")
	cli.OneDType(cmd, "dtype")

	return cmd
}

func loraExportCmd(a *cli.App) *cobra.Command {
	var o loracmd.ExportOptions
	cmd := a.Verb(cli.Verb{
		Use:   "export ADAPTER --out PATH",
		Short: "Write an adapter as a LoRA that PEFT, llama.cpp and other tools load",
		Long: "Writes an adapter of any kind in the form of PEFT's LoRA, with only those configuration keys that " +
			"every version of PEFT knows.\n\n" +
			"A Mixture of Shards loses nothing: its factors are assembled by copying, with the same rank and " +
			"alpha. The file is larger by the ratio of rank to equivalent rank.\n\n" +
			"--to gguf writes the one file that llama.cpp and ollama load beside the base, also a quantised one. " +
			"It has names, order of rows and architecture of the base, which --model names, and one alpha for all " +
			"modules: scales that differ go into B. DoRA, trained biases, rows and modules, a tied head and what " +
			"llama.cpp computes without adapters are refused.",
		Example: "compress lora export my-mos --out my-lora\n" +
			"compress lora export my-lora --to gguf --model MODEL --dtype f16 --out my-lora.gguf",
		Habit: []string{"out"},
		Args:  cobra.ExactArgs(1),
		Check: func(*cli.Job, []string) error { return loracmd.CheckExport(o) },
		Run:   func(j *cli.Job, args []string) (any, error) { return loracmd.Export(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.To, "to", "peft", "`NAME` form of the result: peft (a folder) or gguf (a file)")
	f.StringVar(&o.Out, "out", "", "`PATH` folder for the result, or .gguf file; it appears when it is complete")
	f.StringVar(&o.Model, "model", "",
		"`MODEL` base model, needed for gguf, and where an adapter does not name its modules itself")
	f.StringVar(&o.DType, "dtype", "f32", "`TYPE` element type of the result: f32, bf16 or f16, or q8_0 of a GGUF file")
	f.IntVar(&o.Rank, "rank", 0, "`N` reduce to this rank by the best approximation (default: keep the rank)")
	f.BoolVar(&o.WithExperts, "with-experts", false,
		"also export factors of a mixture that PEFT 0.21 ignores, of experts or beside them")
	f.BoolVar(&o.Bake, "bake", false, "multiply the scale into B, for tools that do not scale as PEFT does")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	cli.Require(cmd, "out")
	cli.Inputs(cmd, "model")
	cli.NotZero(cmd, "rank")
	cli.OneOf(cmd, "to", "peft", "gguf")
	cli.OneDType(cmd, "dtype", "q8_0")

	return cmd
}

func loraExtractCmd(a *cli.App) *cobra.Command {
	var o loracmd.ExtractOptions
	cmd := a.Verb(cli.Verb{
		Use:   "extract BASE TUNED --rank R --out DIR",
		Short: "Make a LoRA of the difference between two models",
		Long: "Writes the LoRA that leads from a base model to its fine-tune: the difference of each matrix, " +
			"approximated by its largest singular values. The table shows how much of the difference the rank " +
			"keeps, and which other tensors differ.\n\n" +
			"One matrix is in memory at a time.",
		Example: "compress lora extract ./my-model tuned --rank 8 --out difference",
		Habit:   []string{"out"},
		Args:    cobra.ExactArgs(2),
		Run:     func(j *cli.Job, args []string) (any, error) { return loracmd.Extract(j, args[0], args[1], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the result; it appears when it is complete")
	cli.TensorsFlag(f, &o.Tensors)
	f.IntVar(&o.Rank, "rank", 0, "`N` rank of the LoRA")
	f.StringSliceVar(&o.Targets, "targets", nil,
		"`LIST` matrices to extract, names separated by commas (default: all linear layers)")
	f.StringVar(&o.DType, "dtype", "f32", "`TYPE` element type of the result: f32, bf16 or f16")
	f.BoolVar(&o.Whole, "whole", false,
		"also keep other tensors that differ (norms, tables, biases), as modules_to_save")
	f.BoolVar(&o.Exact, "exact", false,
		"compute full singular value decompositions instead of randomised ones; slower")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	cli.CompleteList(cmd, "targets", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
	cli.Require(cmd, "rank", "out")
	cli.OneDType(cmd, "dtype")

	return cmd
}

func loraInspectCmd(a *cli.App) *cobra.Command {
	model := ""
	cmd := a.Verb(cli.Verb{
		Use:   "inspect DIR...",
		Short: "Show what adapters hold",
		Long: "Checks the files of an adapter against each other and shows its kind, ranks, scales and the size " +
			"of its changes. With --model everything must fit that base model, and the first tensor that does " +
			"not is named.\n\n" +
			"For several adapters it shows the memory that they take together, beside that of as many plain " +
			"LoRAs.",
		Example: "compress lora inspect my-adapter --model ./my-model\n" +
			"compress lora inspect first second third",
		Unused: []string{"device", "threads", "seed"},
		Args:   cobra.MinimumNArgs(1),
		Run: func(j *cli.Job, args []string) (any, error) {
			if len(args) > 1 {
				return loracmd.InspectAll(j, args, model)
			}
			return loracmd.Inspect(j, args[0], model)
		},
	})

	cmd.Flags().StringVar(&model, "model", "", "`MODEL` base model that the adapter must fit")
	cli.Inputs(cmd, "model")
	return cmd
}
