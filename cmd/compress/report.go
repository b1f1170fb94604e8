package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/reportcmd"
)

func reportCmd(a *cli.App) *cobra.Command {
	var out string
	overwrite := false
	cmd := a.Verb(cli.Verb{
		Use:   "report RUN... --out report.html",
		Short: "Put the results of several runs on one page",
		Long: "Reads the JSON that --report wrote, or a folder that demo, eval, eval batch, prune compare, " +
			"search, lora train, merge or run wrote, and writes one self-contained page with figures, plots " +
			"and tables side by side. The ending of --out chooses the form: .html, .md, .csv with the " +
			"figures alone, or .svg with the sizes of models over their divergence from one (of compress ppl " +
			"--against).",
		Example: "compress demo\ncompress ppl demo-out/nano/base --data demo-out/nano/text/test.txt --seqlen 256 " +
			"--report dense.json\ncompress report demo-out dense.json --out report.html",
		Unused: []string{"device", "threads", "seed"},
		Args:   cobra.MinimumNArgs(1),
		Run:    func(j *cli.Job, args []string) (any, error) { return reportcmd.Write(j, args, out, overwrite) },
	})

	cmd.Flags().StringVar(&out, "out", "", "`FILE` page to write: .html, .md, .csv or .svg")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "replace what is in --out")
	cli.Require(cmd, "out")

	return cmd
}
