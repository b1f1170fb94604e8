package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
)

func expertsCmd(a *cli.App) *cobra.Command {
	cmd := a.Verb(cli.Verb{
		Use:   "experts",
		Short: "Use the experts of a Mediator checkpoint (merge_method: mediate)",
		Long: "Works on folders that compress merge wrote with merge_method: mediate. Such a checkpoint holds " +
			"one dense model, the average of several fine-tunes, and a sparse expert for each of them.\n\n" +
			"export writes an expert, or a mixture of them, as an ordinary checkpoint. route shows which " +
			"experts would answer a prompt. verify checks the folder against its manifest. The verbs eval, " +
			"ppl, generate and forward run such a folder directly (--experts).",
		Example: "compress experts verify merged\ncompress experts export merged --task sums --out sums",
		Unused:  []string{"device", "threads", "seed", "json", "report", "quiet"},
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
		Use:   "export DIR --out DIR",
		Short: "Write an expert, or a mixture of experts, as an ordinary checkpoint",
		Long: "Writes the model that a Mediator checkpoint is with fixed weights of its experts: --task takes " +
			"one expert, --weights several. The result is an ordinary checkpoint that every tool loads.\n\n" +
			"The files of these experts must be the ones that the manifest lists. Only compress experts verify " +
			"checks the dense model's files too.",
		Example: "compress experts export merged --weights sums=0.6,news=0.4 --out mixed",
		Unused:  []string{"device", "seed"},
		Args:    cobra.ExactArgs(1), Resumes: true,
		Run: func(j *cli.Job, args []string) (any, error) { return mergecmd.Export(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Task, "task", "", "`NAME` name of one expert")
	f.StringVar(&o.Weights, "weights", "",
		"`LIST` weights of the experts, such as sums=0.6,news=0.4, or dense for none")
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the result; it appears when it is complete")
	f.StringVar(&o.Shard, "max-shard-size", "5GB",
		"`SIZE` largest file, such as 2GB or 500MiB, or none for a single file")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	f.BoolVar(&o.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	cli.Complete(cmd, "max-shard-size", "none", "500MB", "2GB", "5GB")
	cmd.MarkFlagsOneRequired("task", "weights")
	cmd.MarkFlagsMutuallyExclusive("task", "weights")
	cli.Require(cmd, "out")

	return cmd
}

func expertsRouteCmd(a *cli.App) *cobra.Command {
	var o mergecmd.RouteOptions
	cmd := a.Verb(cli.Verb{
		Use:   "route DIR",
		Short: "Show which experts would answer a prompt",
		Long: "Prints for each prompt the probability of every expert, how uncertain the router is, how " +
			"foreign the prompt is to it (log odds, or a squared distance), and the weights that follow. Use it " +
			"to choose the settings of --experts auto:… in other verbs.\n\n" +
			"--features takes a file with the tensor features [n, d] instead of prompts.",
		Example: "compress experts route merged --prompt 'Question: 14 + 6 ='",
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return mergecmd.Route(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Prompt, "prompt", "", "`TEXT` prompt to route")
	f.StringVar(&o.File, "file", "",
		"`FILE` JSONL with one prompt a line: a string, or an object with text or prompt")
	f.StringVar(&o.Features, "features", "", "`FILE` .safetensors with the tensor features [n, d] in F32")
	f.StringVar(&o.Policy.Select, "select", "",
		"`NAME` which experts answer: top1, all or dense (default: the best, or none for a foreign prompt)")
	f.Float64Var(&o.Policy.Certain, "certain", 1,
		"`X` uncertainty, 0 to 1, up to which the most probable expert answers alone")
	f.Float64Var(&o.Policy.Cover, "cover", 0.9, "`X` probability that the chosen experts must have together")
	f.IntVar(&o.Policy.Most, "most", 3, "`N` largest number of experts for a prompt")
	f.StringVar(&o.Policy.Outside, "outside", "dense",
		"`NAME` what answers prompts that resemble no expert's: dense (none), merge (all experts), or ignore (treat "+
			"them like others)")
	f.Float64Var(&o.Policy.Soften, "soften", 1, "`X` factor on the router's calibrated temperature")
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
		Use:   "verify DIR",
		Short: "Check the files of a Mediator checkpoint",
		Long: "Compares the hash of every file but README.md with the manifest, which no other verb does, counts " +
			"the elements that are kept, and prints the reconstruction error of every expert. The error is " +
			"measured on the expert's original files if they are still there unchanged; otherwise the one " +
			"noted at the merge is shown.",
		Example: "compress experts verify merged", Unused: []string{"device", "threads", "seed"},
		Args: cobra.ExactArgs(1),
		Run:  func(j *cli.Job, args []string) (any, error) { return mergecmd.Verify(j, args[0]) },
	})
}
