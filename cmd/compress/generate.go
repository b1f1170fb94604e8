package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/modelcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
)

func generateCmd(a *cli.App) *cobra.Command {
	var o modelcmd.GenerateOptions
	cmd := a.Verb(cli.Verb{
		Use: "generate MODEL --prompt S", Short: "Continue a text",
		Long: "Continues the prompt until --max-tokens or an end token, printing text as it comes. Temperature 0, " +
			"the default, always takes the likeliest token; otherwise tokens are drawn, the same ones for the " +
			"same --seed.",
		Example: "compress generate testdata/nano/base --prompt 'Question: 14 + 6 =' --max-tokens 8",
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return modelcmd.Generate(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Prompt, "prompt", "", "text of the prompt; it is continued")
	f.IntVar(&o.MaxTokens, "max-tokens", 64, "tokens to add at most")
	f.Float64Var(&o.Temperature, "temperature", 0, "0 is greedy")
	f.Float64Var(&o.TopP, "top-p", 0, "draw from the likeliest tokens that make up this share; 0 is all")
	f.IntVar(&o.TopK, "top-k", 0, "draw from this many likeliest tokens; 0 is all")
	openmodel.ExpertsFlag(cmd, &o.Experts)
	f.StringVar(&o.Adapter, "adapter", "", "folder of an adapter; it is applied first")
	cli.Require(cmd, "prompt")
	cli.Inputs(cmd, "adapter")
	cli.MayBeEmpty(cmd, "prompt")

	return cmd
}
