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
		Use: "version", Short: "Print the version and the device that auto chooses",
		Long: "Prints the version of the program, the Go release it was built with, what --device auto opens on " +
			"this machine, and which kinds of devices the build can open: a build with -tags nogpu is one static " +
			"file and has no cuda.",
		Example: "compress version --json",
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
