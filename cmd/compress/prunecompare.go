package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/prunecmd"
)

func pruneCompareCmd(a *cli.App) *cobra.Command {
	var o prunecmd.CompareOptions
	cmd := a.Verb(cli.Verb{
		Use:   "compare MODEL --out DIR",
		Short: "Prune a model in several ways and compare the perplexity",
		Long: "Runs every method with every sparsity or pattern on the same calibration sequences, and measures " +
			"the perplexity on the same text, with standard errors and a paired test against the best. A " +
			"method is one of those of compress prune, with @ALLOCATION, +swaps and +UPDATE, in this order, as " +
			"wanted: pruner-zero@owl+sparsegpt, wanda+swaps+exact. Other settings hold for all methods that have " +
			"them.\n\n" +
			"The folder gets report.json and report.html. Finished runs are noted in journal.jsonl and not " +
			"repeated with --resume, to which methods and patterns may be added. Gradients are computed once.",
		Example: "compress prune compare ./my-model --methods magnitude,wanda,sparsegpt --patterns " +
			"0.5,0.6,2:4 \\\n    --calib calib.txt --samples 32 --seqlen 256 --ppl " +
			"test.txt --out compared",
		Habit:   []string{"out"},
		Args:    cobra.ExactArgs(1),
		Resumes: true,
		Check:   func(*cli.Job, []string) error { return prunecmd.CheckCompare(o) },
		Run:     func(j *cli.Job, args []string) (any, error) { return prunecmd.Compare(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Methods, "methods", "magnitude,wanda", "`LIST` methods, separated by commas")
	f.StringVar(&o.Patterns, "patterns", "0.5", "`LIST` sparsities and N:M patterns, separated by commas")
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the results")
	o.AddCalibration(f)
	f.StringVar(&o.PPL, "ppl", "", "`FILE` text to measure the perplexity on")
	f.StringVar(&o.Group, "group", "",
		"`NAME` weights that compete with each other, for unstructured patterns: "+
			strings.Join(prunecmd.Groups, ", ")+" (default: the method's own)")
	o.Add(f)
	o.AddSearch(f)
	f.BoolVar(&o.Keep, "keep-models", false, "keep the pruned models, in --out/models")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run, or extend a finished one")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	completeTuning(cmd)
	cli.CompleteList(cmd, "methods", prunecmd.Methods()...)
	cli.Alias(cmd, "keep", "keep-models")
	cli.Require(cmd, "ppl", "out")
	cli.Inputs(cmd, "calib", "ppl", "grads", "overrides")
	cli.Texts(cmd, cli.ToLearn, "calib")
	cli.Texts(cmd, cli.ToMeasure, "ppl")
	cli.MayBeEmpty(cmd, "group")

	return cmd
}
