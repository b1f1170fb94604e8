package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/editevalcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/evalcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
	"github.com/modelcompress/compress/cmd/compress/internal/runcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/searchcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
)

func workerCmd(a *cli.App) *cobra.Command {
	var o workers.WorkerOptions
	cmd := a.Verb(cli.Verb{
		Use: "worker --cluster URL", Short: "Do measurements for searches, editing studies and batches that " +
			"run elsewhere",
		Long: "Takes work from a NATS cluster, or from a search that was started with --listen, until it is " +
			"interrupted. It has to be the same program on the same kind of device, and to have the same models, " +
			"else it refuses and says why. Data come with the work. A worker may die at any time: what it was at " +
			"goes to another one, and the result of the search stays the same. For run, editeval and eval batch it " +
			"has to see the coordinator's folders, under the same names; what is done there is what the folder " +
			"itself says, and not the offer.",
		Example: "compress worker --cluster nats://127.0.0.1:4222 --model testdata/nano/base --workers 2",
		Args:    cobra.NoArgs,
		Run: func(j *cli.Job, _ []string) (any, error) {
			return workers.Work(j, o,
				map[string]workers.Opener{
					searchcmd.Kind: searchcmd.Serve, mergecmd.SearchKind: mergecmd.ServeSearch,
					editevalcmd.Kind: editevalcmd.Serve, evalcmd.Kind: evalcmd.Serve, runcmd.Kind: runcmd.Serve,
				})
		},
	})

	f := cmd.Flags()
	f.StringVar(&o.Cluster, "cluster", "", workers.ClusterHelp)
	workers.AddAccess(f, &o.Access)
	f.StringArrayVar(&o.Folders, "folder", nil,
		"folder in which runs may be worked on; several times for several, without it those of this user's own")
	f.StringArrayVar(&o.Models, "model", nil, "folder of a model; as often as there are models, without it they are "+
		"looked for where the coordinator has them")
	f.IntVar(&o.Workers, "workers", 0, workers.WorkersHelp)
	cli.Require(cmd, "cluster")

	return cmd
}
