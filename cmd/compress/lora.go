package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

func loraCmd(a *cli.App) *cobra.Command {
	cmd := a.Verb(cli.Verb{
		Use: "lora", Short: "Low-rank adapters: LoRA and Mixture of Shards",
		Long: "Trains low-rank adapters and works on them: PEFT's LoRA with all its options, and Mixture of " +
			"Shards, which shares pools of shards between the blocks.",
		Example: "compress lora train testdata/nano/base --data testdata/nano/text/calib.txt --steps 20 --out " +
			"my-adapter\ncompress lora inspect my-adapter\ncompress lora fold testdata/nano/base --adapter " +
			"my-adapter --out folded",
		Args: cobra.NoArgs,
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
