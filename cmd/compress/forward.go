package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/modelcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
)

func forwardCmd(a *cli.App) *cobra.Command {
	var o modelcmd.ForwardOptions
	cmd := a.Verb(cli.Verb{
		Use:   "forward MODEL --ids IN.safetensors --out OUT.safetensors",
		Short: "Run a model on token ids and write what it computes",
		Long: "Reads input_ids (I64 or I32, [B,T]) and, if present, labels of the same shape: aligned with " +
			"input_ids, shifted by one for the loss, -100 skipped. Writes loss [1] (mean over all counted " +
			"positions), logits [B,T,V] and loss_per_token [B,T-1] (0 where skipped), all F32. --hidden adds " +
			"hidden.0 (embeddings) and hidden.i (output of block i, before the final norm). --grad adds grad.NAME, " +
			"the gradient of the loss, for every parameter, shaped as in the checkpoint; a tied table has one. " +
			"Gradients go to the file block by block.",
		Example: "compress forward testdata/nano/base --ids IN.safetensors --out logits.safetensors --hidden --grad",
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return modelcmd.Forward(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.IDs, "ids", "", ".safetensors file with input_ids")
	f.StringVar(&o.Out, "out", "", "file to write; .safetensors")
	f.BoolVar(&o.Hidden, "hidden", false, "also write the hidden states")
	f.BoolVar(&o.Grad, "grad", false, "also write the gradient of the loss for every parameter")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	openmodel.ExpertsFlag(cmd, &o.Experts)
	f.StringVar(&o.Adapter, "adapter", "",
		"folder of an adapter; it is applied first, and --grad gives the gradients of its parameters")
	cli.Require(cmd, "ids", "out")
	cli.Inputs(cmd, "ids", "adapter")

	return cmd
}
