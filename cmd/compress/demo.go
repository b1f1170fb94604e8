package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/demo"
	"github.com/modelcompress/compress/cmd/compress/internal/shell"
)

func demoCmd(a *shell.App) *cobra.Command {
	var out string
	cmd := a.Verb(shell.Verb{
		Use: "demo", Short: "Prune and measure a small model that comes with the program",
		Long: "Writes a 0.5M-parameter model and its texts to --out, prunes it with magnitude and Wanda at 50 % and 2:4, measures the " +
			"perplexity on held-out text before and after, and writes report.json and report.html. Takes seconds and needs no " +
			"network. The folder of an earlier demo is replaced.",
		Example: "compress demo --out demo-out",
		Args:    cobra.NoArgs,
		Run:     func(j *shell.Job, _ []string) (any, error) { return demo.Run(j, out) },
	})
	cmd.Flags().StringVar(&out, "out", "demo-out", "folder to write")
	return cmd
}
