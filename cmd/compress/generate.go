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
		Use:   "generate MODEL --prompt S",
		Short: "Continue a prompt",
		Long: "Continues the prompt until --max-tokens or an end token, and prints the text as it is generated. " +
			"By default the most probable token is always taken; with --temperature above 0 tokens are " +
			"sampled, and the same --seed gives the same text.\n\n" +
			"The prompt is taken as it stands: no chat template is applied, which instruct models may need.",
		Example: "compress generate testdata/nano/base --prompt 'Question: 14 + 6 =' --max-tokens 8",
		Habit:   []string{"prompt"},
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return modelcmd.Generate(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Prompt, "prompt", "", "`TEXT` text to continue")
	f.IntVar(&o.MaxTokens, "max-tokens", 64, "`N` tokens to generate at most")
	f.Float64Var(&o.Temperature, "temperature", 0,
		"`X` sampling temperature (default: 0, always the most probable token)")
	f.Float64Var(&o.TopP, "top-p", 0,
		"`X` sample from the most probable tokens that together have this probability (default: all tokens)")
	f.IntVar(&o.TopK, "top-k", 0, "`N` sample from the N most probable tokens (default: all tokens)")
	openmodel.ExpertsFlag(cmd, &o.Experts)
	f.StringVar(&o.Adapter, "adapter", "", "`ADAPTER` apply this adapter first")
	cli.Require(cmd, "prompt")
	cli.Inputs(cmd, "adapter")
	cli.MayBeEmpty(cmd, "prompt")

	return cmd
}
