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
		Use:   "worker --cluster URL",
		Short: "Do work for searches, studies and batches of other machines",
		Long: "Takes work from a NATS cluster, or from a verb that was started with --listen, until it is " +
			"interrupted: measurements of search and merge search, runs of eval batch and editeval, jobs of " +
			"run. The inputs of a search come with the work. For run, editeval and eval batch the worker must " +
			"see the coordinator's folders under the same names.\n\n" +
			"It must be the same program on the same kind of device with the same models, otherwise it refuses " +
			"and says why. A worker may be stopped at any time: its work goes to another one, and results do " +
			"not change.",
		Example: "compress worker --cluster nats://127.0.0.1:4222 --model ./my-model --workers 2",
		Unused:  []string{"seed"},
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
	f.StringVar(&o.Cluster, "cluster", "", "`URL` "+workers.ClusterHelp)
	workers.AddAccess(f, &o.Access)
	f.StringArrayVar(&o.Folders, "folder", nil,
		"`DIR` folder in which runs may be worked on; give it several times for several (default: those of "+
			"this user)")
	f.StringArrayVar(&o.Models, "model", nil,
		"`MODEL` folder of a model; once for each model (default: where the coordinator has them)")
	f.IntVar(&o.Workers, "workers", 0, "`N` "+workers.AtOnce+" (default: one for each thread)")
	cli.Require(cmd, "cluster")

	return cmd
}
