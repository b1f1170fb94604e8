package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/modelcmd"
)

func inspectCmd(a *cli.App) *cobra.Command {
	var o modelcmd.InspectOptions
	cmd := a.Verb(cli.Verb{
		Use:   "inspect [PATH]",
		Short: "Show what a checkpoint holds, check it, or show the device",
		Long: "Shows architecture, number of parameters, element types and sparsity of a model folder or of one " +
			".safetensors or .gguf file, for every kind of matrix; of quantised weights as they are decoded. " +
			"--verify also checks all shapes against config.json and looks for NaN and infinite values. Of an " +
			"importance matrix it shows what was measured of which inputs.\n\n" +
			"Without a path it shows the device instead: its name, instruction sets and memory, and which " +
			"operations it leaves to the reference code.",
		Example: "compress inspect ./my-model --verify\n" +
			"compress inspect diff ./my-model pruned\n" +
			"compress inspect --device cpu",
		Unused: []string{"seed"},
		Args:   cobra.MaximumNArgs(1),
		Run: func(j *cli.Job, args []string) (any, error) {
			if len(args) == 0 {
				return modelcmd.Device(j)
			}
			return modelcmd.Inspect(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.BoolVar(&o.Verify, "verify", false, "also check shapes against config.json, and every value")
	f.BoolVar(&o.Tensors, "tensors", false, "list every tensor")
	f.BoolVar(&o.Headers, "headers", false, "read headers only, which is quick but does not count zeros")
	cmd.MarkFlagsMutuallyExclusive("verify", "headers")
	cmd.AddCommand(inspectDiffCmd(a))

	return cmd
}

func inspectDiffCmd(a *cli.App) *cobra.Command {
	all := false
	tensors := false
	cmd := a.Verb(cli.Verb{
		Use:   "diff A B",
		Short: "Compare two checkpoints tensor by tensor",
		Long: "Compares names, types, shapes and values of two folders, .safetensors or .gguf files. Values are " +
			"compared as numbers, so a BF16 and an F32 copy of a model differ only by rounding. Equal tensors " +
			"are counted, not listed, unless --all is given. Many tensors are shown by their kinds: --tensors prints " +
			"a line for each.",
		Example: "compress inspect diff ./my-model pruned",
		Unused:  []string{"seed"},
		Args:    cobra.ExactArgs(2),
		Run: func(j *cli.Job, args []string) (any, error) {
			return modelcmd.Diff(j, args[0], args[1], all, tensors)
		},
	})

	cmd.Flags().BoolVar(&all, "all", false, "list equal tensors too")
	cli.TensorsFlag(cmd.Flags(), &tensors)
	return cmd
}
