package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

func loraCmd(a *cli.App) *cobra.Command {
	cmd := a.Verb(cli.Verb{
		Use:   "lora",
		Short: "Train low-rank adapters and work with them",
		Long: "Trains adapters on a model and works with adapter files: LoRA with the options of PEFT, rsLoRA, " +
			"DoRA, VeRA, PRoLoRA, and Mixture of Shards, which shares pools of vectors between layers and " +
			"needs fewer parameters.\n\n" +
			"train makes an adapter. fold puts it into the weights of the model. export writes it as a LoRA " +
			"for PEFT. combine makes one adapter of several. extract makes a LoRA of the difference between " +
			"two models. inspect shows what an adapter holds.",
		Example: "compress lora train ./my-model --data calib.txt --steps 20 --out " +
			"my-adapter\ncompress lora inspect my-adapter\ncompress lora fold ./my-model --adapter " +
			"my-adapter --out folded",
		Unused: []string{"device", "threads", "seed", "json", "report", "quiet"},
		Args:   cobra.NoArgs,
		Run: func(*cli.Job, []string) (any, error) {
			return nil, cli.Usagef("which work on adapters? see compress lora --help")
		},
	})

	cmd.AddCommand(
		loraTrainCmd(a),
		loraExportCmd(a),
		loraFoldCmd(a),
		loraCombineCmd(a),
		loraExtractCmd(a),
		loraInspectCmd(a),
	)

	return cmd
}
