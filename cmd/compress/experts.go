package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
)

func expertsCmd(a *cli.App) *cobra.Command {
	cmd := a.Verb(cli.Verb{
		Use: "experts", Short: "Use a folder of experts that merge made by mediate",
		Long: "Works on folders that merge_method: mediate wrote: export writes an expert or a mixture as an " +
			"ordinary checkpoint, route shows which experts would answer a prompt, verify compares every hash and " +
			"gives the errors of reconstruction.",
		Example: "compress experts verify merged\ncompress experts export merged --task sums --out sums",
		Args:    cobra.NoArgs,
		Run: func(*cli.Job, []string) (any, error) {
			return nil, cli.Usagef("export, route or verify? see compress experts --help")
		},
	})

	cmd.AddCommand(expertsExportCmd(a), expertsRouteCmd(a), expertsVerifyCmd(a))
	return cmd
}

func expertsExportCmd(a *cli.App) *cobra.Command {
	var o mergecmd.ExportOptions
	cmd := a.Verb(cli.Verb{
		Use: "export DIR --out DIR", Short: "Write an expert, or a mixture of experts, as an ordinary checkpoint",
		Long: "Writes the model of a mediated folder under fixed weights as an ordinary checkpoint: --task takes " +
			"one expert, --weights several. The files of these experts must be those that the manifest describes; " +
			"only experts verify compares the dense model's too.",
		Example: "compress experts export merged --weights sums=0.6,news=0.4 --out mixed",
		Args:    cobra.ExactArgs(1), Resumes: true,
		Run: func(j *cli.Job, args []string) (any, error) { return mergecmd.Export(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Task, "task", "", "one expert")
	f.StringVar(&o.Weights, "weights", "",
		"weights of what is combined; by expert, such as a=0.6,b=0.4, dense for none")
	f.StringVar(&o.Out, "out", "", "folder to write; it appears when it is complete")
	f.StringVar(&o.Shard, "max-shard-size", "5GB", cli.ShardHelp)
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run")
	cli.Complete(cmd, "max-shard-size", "none", "500MB", "2GB", "5GB")
	cmd.MarkFlagsOneRequired("task", "weights")
	cmd.MarkFlagsMutuallyExclusive("task", "weights")
	cli.Require(cmd, "out")

	return cmd
}

func expertsRouteCmd(a *cli.App) *cobra.Command {
	var o mergecmd.RouteOptions
	cmd := a.Verb(cli.Verb{
		Use: "route DIR", Short: "Show which experts would answer a prompt",
		Long: "Shows for each prompt the probability of every expert, the uncertainty, the distance to what the " +
			"router knows, and the weights that follow. --features takes a file with the tensor features [n, d] " +
			"instead of prompts.",
		Example: "compress experts route merged --prompt 'Question: 14 + 6 ='",
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return mergecmd.Route(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Prompt, "prompt", "", "text of the prompt; it is routed")
	f.StringVar(&o.File, "file", "", "file of texts; JSONL of strings, or of objects with text or prompt")
	f.StringVar(&o.Features, "features", "", ".safetensors file with the tensor features [n, d], F32")
	f.StringVar(&o.Policy.Select, "select", "", "top1, all or dense; empty decides by uncertainty")
	f.Float64Var(&o.Policy.Certain, "certain", 0.3, "uncertainty up to which the likeliest expert answers alone")
	f.Float64Var(&o.Policy.Cover, "cover", 0.9, "probability that the chosen experts have together")
	f.IntVar(&o.Policy.Most, "most", 3, "experts at most")
	f.StringVar(&o.Policy.Outside, "outside", "merge",
		"prompts like no expert's: merge all experts, dense, or ignore: like others")
	f.Float64Var(&o.Policy.Soften, "soften", 1, "factor on the calibrated temperature")
	cmd.MarkFlagsOneRequired("prompt", "file", "features")
	cmd.MarkFlagsMutuallyExclusive("prompt", "file", "features")
	cli.Inputs(cmd, "file", "features")
	cli.MayBeEmpty(cmd, "select", "prompt")
	cli.Complete(cmd, "select", "top1", "all", "dense")
	cli.OneOf(cmd, "outside", "merge", "dense", "ignore")

	return cmd
}

func expertsVerifyCmd(a *cli.App) *cobra.Command {
	return a.Verb(cli.Verb{
		Use: "verify DIR", Short: "Check a folder of experts",
		Long: "Compares the hash of every file but README.md with the manifest, which no other verb does, counts " +
			"the kept elements, and gives every expert's error of reconstruction: measured on its own files where " +
			"these are still there unchanged, otherwise as noted.",
		Example: "compress experts verify merged", Args: cobra.ExactArgs(1),
		Run: func(j *cli.Job, args []string) (any, error) { return mergecmd.Verify(j, args[0]) },
	})
}
