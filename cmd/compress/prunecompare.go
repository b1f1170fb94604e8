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
		Use: "compare MODEL --out DIR", Short: "Prune a model in several ways and compare what it costs",
		Long: "Runs every method with every sparsity or pattern on the same calibration ids and measures the " +
			"perplexity on the same windows, with its standard error and a paired test against the best. A method " +
			"is one of prune's, with @ALLOCATION or +UPDATE or both: pruner-zero@owl+sparsegpt; other settings hold " +
			"for all methods that have them. Gradients are computed once, and so is what allocations measure on the " +
			"dense model. Writes report.json and report.html to --out; a run that is finished is noted in " +
			"journal.jsonl there and not run again with --resume, to which methods and patterns may be added.",
		Example: "compress prune compare testdata/nano/base --methods magnitude,wanda,sparsegpt --patterns " +
			"0.5,0.6,2:4 \\\n    --calib testdata/nano/text/calib.txt --samples 32 --seqlen 256 --ppl " +
			"testdata/nano/text/test.txt --out compared",
		Args:    cobra.ExactArgs(1),
		Resumes: true,
		Check:   func(*cli.Job, []string) error { return prunecmd.CheckCompare(o) },
		Run:     func(j *cli.Job, args []string) (any, error) { return prunecmd.Compare(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Methods, "methods", "magnitude,wanda", "methods, separated by commas")
	f.StringVar(&o.Patterns, "patterns", "0.5", "sparsities and N:M patterns, separated by commas")
	f.StringVar(&o.Out, "out", "", "folder to write")
	f.StringVar(&o.Calib, "calib", "", "calibration data; text, JSONL or token ids")
	f.StringVar(&o.PPL, "ppl", "", "file to measure the perplexity on")
	f.IntVar(&o.Samples, "samples", 128, "calibration windows to draw")
	f.IntVar(&o.SeqLen, "seqlen", 0, "tokens of a window; also for --ppl, 0 is 2048, or the model's positions if "+
		"they are fewer")
	f.BoolVar(&o.Join, "join", false, "take the records of a JSONL file as one text")
	f.StringVar(&o.Group, "group", "",
		"weights that are compared with each other; "+strings.Join(prunecmd.Groups,
			", ")+", empty is the method's own, for patterns that are unstructured")
	o.Add(f)
	f.BoolVar(&o.Keep, "keep-models", false, "keep the pruned models, in --out/models")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run; or widen a finished one")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	completeTuning(cmd)
	cli.CompleteList(cmd, "methods", prunecmd.Methods()...)
	cli.Alias(cmd, "keep", "keep-models")
	cli.Require(cmd, "ppl", "out")
	cli.Inputs(cmd, "calib", "ppl", "grads", "overrides")
	cli.MayBeEmpty(cmd, "group")

	return cmd
}
