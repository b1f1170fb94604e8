package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/modelcmd"
)

func inspectCmd(a *cli.App) *cobra.Command {
	var o modelcmd.InspectOptions
	cmd := a.Verb(cli.Verb{
		Use: "inspect [PATH]", Short: "Show what a checkpoint holds, check it, or show the device",
		Long: "Shows architecture, parameters, element types and the share of zeros for every role. PATH is a " +
			"folder or one .safetensors file; without it the device is shown: name, instruction sets, memory and " +
			"the operations it leaves to the reference backend. --verify also checks shapes against config.json and " +
			"looks for NaN and infinities.",
		Example: "compress inspect testdata/nano/base --verify\n" +
			"compress inspect diff testdata/nano/base testdata/nano/sums\n" +
			"compress inspect --device cpu",
		Args: cobra.MaximumNArgs(1),
		Run: func(j *cli.Job, args []string) (any, error) {
			if len(args) == 0 {
				return modelcmd.Device(j)
			}
			return modelcmd.Inspect(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.BoolVar(&o.Verify, "verify", false, "also check shapes against the configuration, and every value")
	f.BoolVar(&o.Tensors, "tensors", false, "list every tensor")
	f.BoolVar(&o.Headers, "headers", false, "read the headers only: no count of zeros")
	cmd.MarkFlagsMutuallyExclusive("verify", "headers")
	cmd.AddCommand(inspectDiffCmd(a))

	return cmd
}

func inspectDiffCmd(a *cli.App) *cobra.Command {
	all := false
	cmd := a.Verb(cli.Verb{
		Use: "diff A B", Short: "Compare two checkpoints tensor by tensor",
		Long: "Compares names, types, shapes and values of two folders or .safetensors files. Values are compared " +
			"as numbers, so that a BF16 and an F32 copy of a model can be told apart by how far they differ. " +
			"Tensors that are equal are only counted, unless --all is given.",
		Example: "compress inspect diff testdata/nano/base testdata/nano/sums",
		Args:    cobra.ExactArgs(2),
		Run:     func(j *cli.Job, args []string) (any, error) { return modelcmd.Diff(j, args[0], args[1], all) },
	})

	cmd.Flags().BoolVar(&all, "all", false, "list equal tensors too")
	return cmd
}
