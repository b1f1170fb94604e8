package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/modelcmd"
)

func pullCmd(a *cli.App) *cobra.Command {
	var o modelcmd.PullOptions
	cmd := a.Verb(cli.Verb{
		Use:   "pull OWNER/NAME[@REVISION]",
		Short: "Download a model from the Hugging Face hub",
		Long: "Downloads a model or an adapter into the hub's cache, where every verb finds it by its name and " +
			"transformers does too, or with --out into a folder. Every file is compared with the hub's checksum " +
			"before it gets its name. After an interruption the same command goes on where it stopped, and a " +
			"second run loads only what has changed.\n\n" +
			"Weights in other forms (pickle, ONNX, TensorFlow, and GGUF beside safetensors) are left out unless " +
			"--include names them. A private or gated model needs a token: HF_TOKEN, --token-file, or the one that " +
			"hf auth login has kept. It is sent to the hub alone. HF_ENDPOINT names another hub.",
		Example: "compress pull HuggingFaceTB/SmolLM2-135M-Instruct\n" +
			"compress generate HuggingFaceTB/SmolLM2-135M-Instruct --chat --prompt 'What is a checkpoint?'\n" +
			"compress pull owner/name@v1.0 --include '*.json,*.gguf' --out model",
		Unused: []string{"device", "threads", "seed"},
		Args:   cobra.ExactArgs(1),
		Check:  func(_ *cli.Job, args []string) error { return modelcmd.CheckPull(args[0], o) },
		Run:    func(j *cli.Job, args []string) (any, error) { return modelcmd.Pull(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringSliceVar(&o.Include, "include", nil,
		"`PATTERN` download only files whose paths fit, such as '*.json,*.safetensors' (default: what the program "+
			"reads)")
	f.StringSliceVar(&o.Exclude, "exclude", nil, "`PATTERN` leave out files whose paths fit")
	f.IntVar(&o.AtOnce, "parallel", 4, "`N` files that are downloaded at the same time")
	f.StringVar(&o.TokenFile, "token-file", "", "`FILE` file with the token")
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the files (default: the hub's cache)")
	f.BoolVar(&o.DryRun, "dry-run", false, "only show what would be downloaded")
	cli.Inputs(cmd, "token-file")
	cmd.ValidArgsFunction = cobra.NoFileCompletions

	return cmd
}
