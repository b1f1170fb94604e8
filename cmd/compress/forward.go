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
		Short: "Compute logits, loss, hidden states or gradients for token ids",
		Long: "Runs a model on given token ids and writes what it computes as tensors, so that it can be " +
			"compared with other implementations.\n\n" +
			"The input has input_ids (I64 or I32, [B,T]) and, if wanted, labels of the same shape: aligned " +
			"with input_ids, shifted by one for the loss, -100 skipped. The output has loss [1] (mean over all " +
			"counted positions), logits [B,T,V] and loss_per_token [B,T-1] (0 where skipped), all F32.\n\n" +
			"--hidden adds hidden.0 (embeddings) and hidden.i (output of decoder layer i, before the final " +
			"norm). --grad adds grad.NAME, the gradient of the loss, for every parameter, shaped as in the " +
			"checkpoint; tied tables have one.",
		Example: "compress forward ./my-model --ids IN.safetensors --out logits.safetensors --hidden --grad",
		Habit:   []string{"ids", "out"},
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return modelcmd.Forward(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.IDs, "ids", "", "`FILE` .safetensors with input_ids")
	f.StringVar(&o.Out, "out", "", "`FILE` .safetensors to write")
	f.BoolVar(&o.Hidden, "hidden", false, "also write the hidden states")
	f.BoolVar(&o.Grad, "grad", false, "also write the gradient of the loss for every parameter")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	openmodel.ExpertsFlag(cmd, &o.Experts)
	cli.ComputeFlags(cmd, &o.Compute)
	f.StringVar(&o.Adapter, "adapter", "",
		"`ADAPTER` apply this adapter first; --grad then gives the gradients of its parameters")
	cli.Require(cmd, "ids", "out")
	cli.Inputs(cmd, "ids", "adapter")

	return cmd
}
