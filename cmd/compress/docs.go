package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/docscmd"
)

func docsCmd(a *cli.App) *cobra.Command {
	var o docscmd.Options
	var cmd *cobra.Command
	cmd = a.Verb(cli.Verb{
		Use:   "docs",
		Short: "Read the documentation: tutorials, how-tos, concepts and the reference",
		Long: "Serves all pages of this version of the program on this machine and prints the address: tutorials, " +
			"how-tos, concepts, evidence, and a reference of verbs, merge methods, task files, " +
			"types and reports that " +
			"is made from the program's own tables. It has a search and needs no network. It runs until it is " +
			"interrupted.\n\n" +
			"With --out the same is written as one HTML file, which any browser opens.",
		Example: "compress docs\ncompress docs --out compress-docs.html",
		Unused:  []string{"device", "threads", "seed"},
		Args:    cobra.NoArgs,
		Check:   func(*cli.Job, []string) error { return o.Check() },
		Run: func(j *cli.Job, _ []string) (any, error) {
			site, err := docscmd.Build(compress.Pages, docscmd.Reference(cmd.Root()))
			if err != nil {
				return nil, fmt.Errorf("pages: %w", err)
			}
			return docscmd.Run(j, site, compress.Version(), o)
		},
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "`PATH` write to this .html file, or to index.html in this "+
		"folder, instead of serving")
	f.StringVar(&o.Addr, "addr", "127.0.0.1:0", "`ADDRESS` host:port at which to serve; port 0 chooses a free one")
	return cmd
}
