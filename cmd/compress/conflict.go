package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
)

func conflictCmd(a *cli.App) *cobra.Command {
	var o mergecmd.ConflictOptions
	cmd := a.Verb(cli.Verb{
		Use: "conflict RECIPE.yaml", Short: "Measure how much models contradict each other",
		Long: "Measures, layer by layer, how much the models of a recipe contradict each other in their differences " +
			"to the base: six metrics, beside what random signs would give. Only the largest differences count " +
			"(--density). Nothing is written but --report and --html, a page with tables and a heat map.",
		Example: "compress conflict recipe.yaml --granularity block",
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return mergecmd.Conflict(j, args[0], o) },
	})

	f := cmd.Flags()
	f.Float64Var(&o.Density, "density", 0,
		"share of values that count; of a tensor's differences the largest, 0 is the recipe's or 0.2, 1 is all")
	f.StringVar(&o.Granularity, "granularity", "", "layer, block or tensor; empty is the recipe's, or layer")
	f.StringVar(&o.Memory, "memory", "1GiB", "memory for buffers and statistics")
	f.StringVar(&o.HTML, "html", "", "page to write")
	f.BoolVar(&o.NonFinite, "allow-nonfinite", false,
		"take NaN and infinite values instead of refusing them; they count as no difference")
	cli.MayBeEmpty(cmd, "granularity")
	cli.OneOf(cmd, "granularity", "layer", "block", "tensor")

	return cmd
}
