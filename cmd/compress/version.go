package main

import (
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/kernels/device"
)

func versionCmd(a *cli.App) *cobra.Command {
	return a.Verb(cli.Verb{
		Use:   "version",
		Short: "Print the version and the device that is used by default",
		Long: "Prints the version of the program, the Go release that built it, the device that --device auto " +
			"opens on this machine, and the kinds of devices that this build knows. A build with -tags nogpu " +
			"is one static file without CUDA.",
		Example: "compress version --json",
		Unused:  []string{"seed"},
		Args:    cobra.NoArgs,
		Run: func(j *cli.Job, _ []string) (any, error) {
			dev, err := j.Device()
			if err != nil {
				return nil, err
			}

			i := dev.Info()
			j.Printf("compress %s (%s, %s/%s)\n%s: %s %v\nbackends: %s\n",
				compress.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, i.Name, i.Model, i.Features,
				strings.Join(device.Backends(), ", "))
			return map[string]any{
				"version": compress.Version(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				"backends": device.Backends(),
			}, nil
		},
	})
}
