package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/searchcmd"
	"github.com/modelcompress/compress/prune"
)

const searchExample = `compress search testdata/nano/base --calib testdata/nano/text/calib.txt --heldout testdata/nano/text/valid.txt \
    --samples 16 --seqlen 128 --windows 16 --few 4 --select-windows 16 --test-windows 32 --sparsity 0.6 --population 30 --generations 5 --out found
compress prune testdata/nano/base --method tree:found/best.json --sparsity 0.6 --calib testdata/nano/text/calib.txt --samples 16 --out pruned
compress search A B --calib a.txt --calib b.txt --heldout x.txt --heldout y.txt --sparsity 0.5,0.6 --pattern unstructured,2:4 --listen :4222 --out found`

func searchCmd(a *cli.App) *cobra.Command {
	var o searchcmd.Options
	cmd := a.Verb(cli.Verb{
		Use: "search MODEL... --out DIR", Short: "Search for a formula that says which weights to prune",
		Long: "Evolves formulas over weights (W), gradients (G) and activations (X) by genetic programming. A " +
			"candidate is measured by the error of a few blocks' outputs, the best of a generation by the loss on a " +
			"few windows, and the best of those by pruning in full; every model with every sparsity and pattern " +
			"counts alike, relative to Wanda's metric. The best are compared on selection data, and the front of " +
			"those once on test data with Wanda, RIA, Pruner-Zero's published tree and magnitude. --heldout is " +
			"divided into the three sets unless --select and --test name files. Writes best.json (for prune " +
			"--method tree:), journal.jsonl, report.json and report.html. Measurements go through a queue: workers " +
			"of other machines join with compress worker at --listen or at a NATS --cluster, and change nothing of " +
			"the result. An interrupted search is continued with --resume, to the same bytes. Gradients take 2 " +
			"bytes a weight in DIR until the search ends.",
		Example: searchExample,
		Args:    cobra.MinimumNArgs(1),
		Resumes: true,
		Check:   func(j *cli.Job, args []string) error { return searchcmd.Check(j, args, o) },
		Run:     func(j *cli.Job, args []string) (any, error) { return searchcmd.Run(j, args, o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "folder to write")
	f.StringArrayVar(&o.Calib, "calib", nil, "calibration data; text, JSONL or token ids, once or once for each model")
	f.StringArrayVar(&o.Heldout, "heldout", nil, "data that metrics are measured on: once, or once for each model")
	f.StringArrayVar(&o.Select, "select", nil,
		"data that the winner is chosen on, with --test; else windows of --heldout")
	f.StringArrayVar(&o.Test, "test", nil, "data of the final comparison, with --select; else windows of --heldout")
	f.IntVar(&o.Samples, "samples", 32, "calibration windows to draw; for each of search, selection and test")
	f.IntVar(&o.SeqLen, "seqlen", 0, "tokens of a window; 0 is 2048, or the model's positions if they are fewer")
	f.IntVar(&o.Windows, "windows", 32, "windows that a full measurement takes")
	f.IntVar(&o.Few, "few", 8, "windows of these that a quick measurement takes")
	f.IntVar(&o.Choose, "select-windows", 32, "windows that the winner is chosen on")
	f.IntVar(&o.Report, "test-windows", 64, "windows of the final comparison")
	f.StringSliceVar(&o.Sparsity, "sparsity", []string{"0.5"},
		"share of the weights to remove; several with commas between, for the pattern unstructured")
	f.StringSliceVar(&o.Pattern, "pattern", []string{"unstructured"},
		"pattern; unstructured, or N:M such as 2:4, several with commas between")
	f.IntVar(&o.Blocks, "blocks", 3, "blocks whose outputs the first measurement looks at")
	f.Float64Var(&o.Keep, "keep", 0.3, "share of a generation that goes on to the next measurement")
	f.StringVar(&o.Grammar, "grammar", searchcmd.Paper,
		"symbols of formulas: paper (W, G, X and 15 operators), full, or their names separated by commas")
	f.BoolVar(&o.OnlyW, "only-weights", false, "also accept formulas of the weights alone")
	f.BoolVar(&o.Compat, "paper-compat", false, "choose nodes and mutate as Pruner-Zero's code does, measure every "+
		"candidate in full, begin without known metrics")
	f.BoolVar(&o.Seeds, "seeds", true,
		"begin with known metrics: Wanda, RIA, Pruner-Zero's trees, powers of W, G and X")
	f.IntVar(&o.Population, "population", 100, "candidates of a generation")
	f.IntVar(&o.Generations, "generations", 50, "generations after the first; 0 is the first alone")
	f.StringVar(&o.Mode, "mode", "generational", "how a population is renewed: generational, steady")
	f.StringVar(&o.Aim, "aim", "best", "what selection prefers: best, pareto (quality and size)")
	f.Float64Var(&o.Parsimony, "parsimony", 0.001, "added to the quality for every node where formulas are compared")
	f.IntVar(&o.Patience, "patience", 0, "generations without a better formula after which the search ends; 0: never")
	f.IntVar(&o.MaxEvals, "max-evals", 0, "candidates after which no generation is begun; 0: no bound")
	o.Where.Add(f, 0, "")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	cli.Require(cmd, "out", "calib", "heldout")
	cli.Inputs(cmd, "calib", "heldout", "select", "test")
	cli.CompleteList(cmd, "pattern", prune.Unstructured, "2:4", "4:8")
	cli.Complete(cmd, "grammar", searchcmd.Paper, searchcmd.Whole)
	cli.OneOf(cmd, "mode", "generational", "steady")
	cli.OneOf(cmd, "aim", "best", "pareto")

	return cmd
}
