package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
)

func mergeCmd(a *cli.App) *cobra.Command {
	var o mergecmd.Options
	cmd := a.Verb(cli.Verb{
		Use:   "merge RECIPE.yaml --out DIR",
		Short: "Merge models by a recipe, as mergekit does",
		Long: "Merges models of one architecture into a new one. The recipe is mergekit's YAML, and recipes made " +
			"for mergekit work unchanged. Methods: " + mergecmd.MethodList() +
			"; compress merge methods NAME explains one. A recipe with the key experts makes a " +
			"mixture of experts, as " +
			"mergekit-moe does.\n\n" +
			"The models are streamed through --memory, whatever their size. The output folder appears when it " +
			"is complete and checked, with a model card and the recipe. An interrupted merge goes on with " +
			"--resume to the same bytes. --dry-run shows what would be done.\n\n" +
			"Vocabularies that differ are united with tokenizer_source or tokenizer in the recipe, as in " +
			"mergekit.",
		Example: "compress merge recipe.yaml --out merged\ncompress merge recipe.yaml --dry-run",
		Habit:   []string{"out"},
		Args:    cobra.ExactArgs(1), Resumes: true,
		Check: func(j *cli.Job, _ []string) error { return mergecmd.Check(j, o) },
		Run:   func(j *cli.Job, args []string) (any, error) { return mergecmd.Run(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the result; it appears when it is complete")
	f.BoolVar(&o.DryRun, "dry-run", false, "check everything, show the plan and what it takes, and write nothing")
	f.BoolVar(&o.Tensors, "tensors", false,
		"--dry-run: print a line for each tensor instead of one for each kind of tensor")
	f.StringVar(&o.DType, "dtype", "",
		"`TYPE` element type of the result: f32, bf16, f16 or float64 (default: the recipe's)")
	f.StringVar(&o.Shard, "max-shard-size", "5GB",
		"`SIZE` largest file, such as 2GB or 500MiB, or none for a single file")
	f.StringVar(&o.Memory, "memory", "1GiB", "`SIZE` memory for buffers")
	f.StringVar(&o.Missing, "missing", "error",
		"`NAME` what to do about tensors that some models lack: error, merge, copy or skip")
	f.BoolVar(&o.Truncate, "truncate-embeddings", false,
		"cut vocabularies that differ to the rows that all models have")
	f.BoolVar(&o.NonFinite, "allow-nonfinite", false, "accept NaN and infinite values; they are merged, and counted")
	f.StringVar(&o.Ties, "ties", "draw",
		"`NAME` how equal values at the threshold of ties, breadcrumbs, sce and della are decided: draw (at "+
			"random) or index (the first ones are kept)")
	f.BoolVar(&o.KeepZeros, "keep-zeros", false,
		"leave zeros of the base model zero (of the first model, if there is no base), so a pruned model keeps "+
			"its sparsity")
	f.StringVar(&o.Layout, "layout", "split",
		"`NAME` how a mixture of experts is stored: split (a tensor for each matrix of an expert) or fused "+
			"(all experts of a layer in one tensor)")
	f.BoolVar(&o.AllowSame, "allow-same", false, "make a mixture even if all its experts are the same model")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	f.BoolVar(&o.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	cmd.AddCommand(mergeSearchCmd(a))
	cli.MayBeEmpty(cmd, "dtype")
	cli.Complete(cmd, "max-shard-size", "none", "500MB", "2GB", "5GB")
	cli.Complete(cmd, "dtype", "f32", "bf16", "f16", "float64")
	cli.OneOf(cmd, "ties", "draw", "index")
	cli.OneOf(cmd, "layout", "split", "fused")
	cli.OneOf(cmd, "missing", "error", "merge", "copy", "skip")
	cmd.AddCommand(mergeMethodsCmd(a), mergeStatisticsCmd(a), mergeRecommendCmd(a))

	return cmd
}

func mergeMethodsCmd(a *cli.App) *cobra.Command {
	return a.Verb(cli.Verb{
		Use:   "methods [NAME...]",
		Short: "List the merge methods, or explain some: formula, parameters, a recipe",
		Long: "Lists the methods that a recipe may name as merge_method. With names, prints for " +
			"each what it computes, " +
			"when one would take it, its parameters with their defaults, and a recipe by it. In formulas x_j are the " +
			"models, b is the base, δ_j is x_j - b, w_j are weights and N is the number of models.",
		Example: "compress merge methods\ncompress merge methods ties della",
		Unused:  []string{"device", "threads", "seed"},
		Args:    cobra.ArbitraryArgs,
		Local:   true,
		Run:     func(j *cli.Job, args []string) (any, error) { return mergecmd.ShowMethods(j, args) },
	})
}

func mergeStatisticsCmd(a *cli.App) *cobra.Command {
	var o mergecmd.StatisticsOptions
	cmd := a.Verb(cli.Verb{
		Use:   "statistics MODEL... --kind NAME --data FILE --out FILE",
		Short: "Collect the statistics that the methods fisher and regmean need",
		Long: "Runs a model on text and writes what two merge methods weight its parameters by: the diagonal " +
			"Fisher information (mean squared gradients of the loss) for fisher, the Gram matrices of the " +
			"inputs of its linear layers for regmean, or both in one file, which either method takes. A recipe " +
			"names the file as the model's parameter fisher or gram; a merge that weighs another model by it is " +
			"refused.\n\n" +
			"With --kind regmean++, the models of a merge are given together, with a text for each: their layers " +
			"are merged one after the other, and each layer's inputs are those that the merged layers below it " +
			"give. --out is then a folder with a file for each model, for a recipe by regmean whose alpha is " +
			"--gram-alpha.",
		Example: "compress merge statistics ./tuned-on-sums --kind gram --data calib.txt " +
			"--out sums-gram.safetensors\n" +
			"compress merge statistics ./tuned-on-sums ./tuned-on-news --kind regmean++ " +
			"--data calib.txt --data valid.txt --out grams",
		Args: cobra.MinimumNArgs(1),
		Run:  func(j *cli.Job, args []string) (any, error) { return mergecmd.Statistics(j, args, o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Kind, "kind", "", "`NAME` statistics to collect: "+strings.Join(mergecmd.StatisticsKinds(), ", "))
	f.StringArrayVar(&o.Data, "data", nil,
		"`FILE` text to run the model on: plain text, JSONL, Parquet, Arrow, a folder of such, or token ids "+
			"(.safetensors or .json); for regmean++ once for each model, in their order")
	f.StringVar(&o.Out, "out", "", "`FILE` .safetensors to write; for regmean++ a folder")
	f.IntVar(&o.Samples, "samples", 256, "`N` calibration sequences, chosen at random")
	f.IntVar(&o.SeqLen, "seqlen", 0,
		"`N` tokens per sequence (default: 2048 or the model's context, whichever is smaller)")
	f.StringVar(&o.Memory, "memory", "1GiB", "`SIZE` memory for statistics; with less, the text is read more often")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	f.Float64Var(&o.Alpha, "gram-alpha", 0.95, "`X` alpha of the merge by regmean that regmean++ collects on")
	cli.Require(cmd, "kind", "data", "out")
	cli.Inputs(cmd, "data")
	cli.Texts(cmd, cli.ToLearn, "data")
	cli.OneOf(cmd, "kind", mergecmd.StatisticsKinds()...)

	return cmd
}

func mergeRecommendCmd(a *cli.App) *cobra.Command {
	var o mergecmd.RecommendOptions
	cmd := a.Verb(cli.Verb{
		Use:   "recommend MODEL MODEL... --base MODEL",
		Short: "Look at fine-tuned models and name the merge that suits them",
		Long: "Compares what fine-tunes of one base have changed, full checkpoints or adapters: how long their " +
			"differences are, whether they go one way, and how often they contradict each other. Prints these " +
			"figures, the method that suits them with the reason, a recipe to merge with, and what would be " +
			"better in other cases. No model is written.",
		Example: "compress merge recommend ./tuned-on-sums ./tuned-on-news --base ./my-model " +
			"--out recipe.yaml",
		Args: cobra.MinimumNArgs(2),
		Run:  func(j *cli.Job, args []string) (any, error) { return mergecmd.Recommend(j, args, o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Base, "base", "", "`MODEL` what the models were fine-tuned from")
	f.StringVar(&o.Out, "out", "", "`FILE` .yaml to write the recipe to")
	f.BoolVar(&o.KeepBase, "keep-base", false, "prefer what the base can do to what each model has learnt")
	f.StringVar(&o.Memory, "memory", "1GiB", "`SIZE` memory for buffers")
	f.BoolVar(&o.NonFinite, "allow-nonfinite", false, "accept NaN and infinite values; they count as no difference")
	cli.Require(cmd, "base")
	cli.Inputs(cmd, "base")
	return cmd
}
