package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress"
)

func (a *app) versionCmd() *cobra.Command {
	return a.newVerb("version", "Print the version and the device that auto chooses",
		"Prints the version of the program, the Go release it was built with, and what --device auto opens on this machine.",
		"compress version --json", cobra.NoArgs,
		func(j *job, _ []string) (any, error) {
			dev, err := j.open()
			if err != nil {
				return nil, err
			}
			i := dev.Info()
			fmt.Fprintf(j.out(), "compress %s (%s, %s/%s)\n%s: %s %v\n",
				compress.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, i.Name, i.Model, i.Features)
			return map[string]string{"version": compress.Version(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}, nil
		})
}
