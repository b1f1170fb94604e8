package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
)

func conflictCmd(a *cli.App) *cobra.Command {
	var o mergecmd.ConflictOptions
	cmd := a.Verb(cli.Verb{
		Use:   "conflict RECIPE.yaml",
		Short: "Measure how much fine-tuned models contradict each other",
		Long: "Takes the models of a merge recipe and measures, layer by layer, where their differences to the " +
			"base model pull in opposite directions: six metrics, each beside the value that random signs " +
			"would give. High conflict means that a plain average will lose what the models have learnt; TIES, " +
			"DARE or mediate then do better.\n\n" +
			"Only the largest differences count (--density), since small ones are mostly noise. No model is " +
			"written; --html writes a page with tables and a heat map, --report the figures.",
		Example: "compress conflict recipe.yaml --granularity block",
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return mergecmd.Conflict(j, args[0], o) },
	})

	f := cmd.Flags()
	f.Float64Var(&o.Density, "density", 0,
		"`X` fraction of each tensor's differences that counts, the largest first; 1 counts all (default: the "+
			"recipe's, or 0.2)")
	f.StringVar(&o.Granularity, "granularity", "",
		"`NAME` what is measured as one: layer (a decoder layer), block (its attention or its MLP) or tensor "+
			"(default: the recipe's, or layer)")
	f.StringVar(&o.Memory, "memory", "1GiB", "`SIZE` memory for buffers")
	f.StringVar(&o.HTML, "html", "", "`FILE` page to write, with tables and a heat map")
	f.BoolVar(&o.NonFinite, "allow-nonfinite", false, "accept NaN and infinite values; they count as no difference")
	cli.MayBeEmpty(cmd, "granularity")
	cli.NotZero(cmd, "density")
	cli.OneOf(cmd, "granularity", "layer", "block", "tensor")

	return cmd
}
