package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/searchcmd"
	"github.com/modelcompress/compress/prune"
)

const searchExample = `compress search ./my-model --calib calib.txt --heldout valid.txt \
    --samples 16 --seqlen 128 --windows 16 --few 4 --select-windows 16 --test-windows 32 --sparsity 0.6 --population 30 --generations 5 --out found
compress prune ./my-model --method tree:found/best.json --sparsity 0.6 --calib calib.txt --samples 16 --out pruned
compress search A B --calib a.txt --calib b.txt --heldout x.txt --heldout y.txt --sparsity 0.5,0.6 --pattern unstructured,2:4 --listen :4222 --out found
compress search MODEL --structure ffn --sparsity 0.25,0.5 --calib FILE --heldout FILE --out found`

func searchCmd(a *cli.App) *cobra.Command {
	var o searchcmd.Options
	cmd := a.Verb(cli.Verb{
		Use:   "search MODEL... --out DIR",
		Short: "Search for a pruning metric by genetic programming",
		Long: "Searches a formula of weights (W), gradients (G) and activations (X) that says which weights a " +
			"model can do without, as Pruner-Zero does. Candidates are tested on a few decoder layers first, " +
			"the better ones on a few sequences, the best by pruning the whole model. Several models, " +
			"sparsities and patterns count alike, each relative to Wanda.\n\n" +
			"--structure looks for a formula that scores whole neurons, heads or layers: sums, means, maxima and " +
			"norms over their weights, and statistics of their activations. Each candidate is judged by the smaller " +
			"model, relative to Wanda-sp, or to block influence for layers; best.json is for compress prune " +
			"--width-score or --layer-score tree:FILE.\n\n" +
			"The best candidates are compared on selection data, and those that no other beats in both quality " +
			"and size once on test data, with Wanda, RIA, Pruner-Zero's published formula and magnitude. " +
			"--heldout is divided into the three sets, unless --select and --test name files. The folder gets " +
			"best.json (for compress prune --method tree:FILE), journal.jsonl, report.json and report.html.\n\n" +
			"Other machines can help (compress worker, with --listen or a NATS --cluster) without changing the " +
			"result. An interrupted search continues with --resume to the same bytes. Gradients take 2 bytes " +
			"per weight in the folder until the search ends.",
		Example: searchExample,
		Args:    cobra.MinimumNArgs(1),
		Resumes: true,
		Check:   func(j *cli.Job, args []string) error { return searchcmd.Check(j, args, o) },
		Run:     func(j *cli.Job, args []string) (any, error) { return searchcmd.Run(j, args, o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the results")
	f.StringArrayVar(&o.Calib, "calib", nil,
		"`FILE` calibration text: plain text, JSONL, Parquet, Arrow, a folder of such, or token ids (.safetensors or "+
			".json); once, or once for each model")
	f.StringArrayVar(&o.Heldout, "heldout", nil,
		"`FILE` held-out text to measure candidates on; once, or once for each model")
	f.StringArrayVar(&o.Select, "select", nil,
		"`FILE` text to choose the winner on, together with --test (default: a part of --heldout)")
	f.StringArrayVar(&o.Test, "test", nil,
		"`FILE` text for the final comparison, together with --select (default: a part of --heldout)")
	f.IntVar(&o.Samples, "samples", 32,
		"`N` calibration sequences, chosen at random, for each of search, selection and test")
	f.IntVar(&o.SeqLen, "seqlen", 0,
		"`N` tokens per sequence (default: 2048 or the model's context, whichever is smaller)")
	f.IntVar(&o.Windows, "windows", 32, "`N` sequences of a full measurement")
	f.IntVar(&o.Few, "few", 8, "`N` sequences of a quick measurement")
	f.IntVar(&o.Choose, "select-windows", 32, "`N` sequences to choose the winner on")
	f.IntVar(&o.Report, "test-windows", 64, "`N` sequences of the final comparison")
	f.StringVar(&o.Structure, "structure", "",
		"`NAME` search a formula that scores whole parts instead of weights: ffn (neurons), heads or layers; "+
			"--sparsity says how many of them go")
	f.StringSliceVar(&o.Sparsity, "sparsity", nil,
		"`LIST` fractions of the weights to remove, for the pattern unstructured, separated by commas (default: 0.5; "+
			"with --structure 0.25)")
	f.StringSliceVar(&o.Pattern, "pattern", []string{"unstructured"},
		"`LIST` unstructured, or N:M such as 2:4, separated by commas")
	f.IntVar(&o.Blocks, "blocks", 3, "`N` decoder layers that the first test prunes")
	f.Float64Var(&o.Keep, "keep", 0.3,
		"`X` fraction of a generation that passes each test; as soon as it is known how well a test orders "+
			"formulas, between half of that and twice as many (1: all)")
	f.StringVar(&o.Grammar, "grammar", searchcmd.Paper,
		"`LIST` symbols of formulas: paper (W, G, X and 15 operators), full, or names separated by commas")
	f.BoolVar(&o.OnlyW, "only-weights", false, "also accept formulas of the weights alone")
	f.BoolVar(&o.Compat, "paper-compat", false,
		"choose nodes and mutate as Pruner-Zero's code does, measure every candidate in full, and begin "+
			"without known metrics")
	f.BoolVar(&o.Seeds, "seeds", true,
		"begin with known metrics: Wanda, RIA, Pruner-Zero's formulas, powers of W, G and X")
	f.StringVar(&o.SeedFormulas, "seed-formulas", "",
		"`FILE` begin with these formulas too, one on each line such as W*sqrt(X); with --generations 0 and "+
			"--seeds=false they are only compared")
	f.IntVar(&o.Population, "population", 100, "`N` candidates per generation")
	f.IntVar(&o.Generations, "generations", 50, "`N` generations after the first")
	f.StringVar(&o.Mode, "mode", "generational", "`NAME` how the population is renewed: generational or steady")
	f.StringVar(&o.Aim, "aim", "best", "`NAME` what selection prefers: best (quality) or pareto (quality and size)")
	f.Float64Var(&o.Parsimony, "parsimony", 0.001, "`X` penalty for every node of a formula")
	f.IntVar(&o.Patience, "patience", 0, "`N` end after N generations without a better formula (default: never)")
	f.IntVar(&o.MaxEvals, "max-evals", 0, "`N` begin no generation after N candidates (default: no limit)")
	o.Where.Add(f, 0, "")
	f.BoolVar(&o.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	cli.Require(cmd, "out", "calib", "heldout")
	cli.Inputs(cmd, "calib", "heldout", "select", "test", "seed-formulas")
	cli.Texts(cmd, cli.ToLearn, "calib")
	cli.Texts(cmd, cli.ToMeasure, "heldout", "select", "test")
	cli.CompleteList(cmd, "pattern", prune.Unstructured, "2:4", "4:8")
	cli.Complete(cmd, "grammar", searchcmd.Paper, searchcmd.Whole)
	cli.OneOf(cmd, "structure", "ffn", "heads", "layers")
	cli.OneOf(cmd, "mode", "generational", "steady")
	cli.OneOf(cmd, "aim", "best", "pareto")

	return cmd
}
