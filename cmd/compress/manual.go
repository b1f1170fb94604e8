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
		Use:   "man --out DIR",
		Short: "Write manual pages",
		Long: "Writes a manual page (section 1, roff) for the program and for every verb to a folder, which is " +
			"made if needed. Pages of the same names are replaced, nothing else is touched.",
		Example: "compress man --out /usr/local/share/man/man1",
		Habit:   []string{"out"}, Unused: []string{"device", "threads", "seed"},
		Args: cobra.NoArgs,
		Run:  func(j *cli.Job, _ []string) (any, error) { return reportcmd.WriteManual(j, cmd.Root(), out) },
	})

	cmd.Flags().StringVar(&out, "out", "", "`DIR` folder for the pages")
	cli.Require(cmd, "out")
	return cmd
}
