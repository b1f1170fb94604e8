package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/reportcmd"
)

func manCmd(a *cli.App) *cobra.Command {
	out := ""
	var cmd *cobra.Command
	cmd = a.Verb(cli.Verb{
		Use: "man --out DIR", Short: "Write manual pages",
		Long: "Writes a manual page (section 1, in roff) for the program and for every verb to a folder, which is " +
			"made if it is not there. Pages of the same names are replaced, nothing else is touched. Pages depend " +
			"on nothing but the program.",
		Example: "compress man --out /usr/local/share/man/man1",
		Args:    cobra.NoArgs,
		Run:     func(j *cli.Job, _ []string) (any, error) { return reportcmd.WriteManual(j, cmd.Root(), out) },
	})

	cmd.Flags().StringVar(&out, "out", "", "folder to write")
	cli.Require(cmd, "out")
	return cmd
}
