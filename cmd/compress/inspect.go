package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
)

type inspectFlags struct{ verify, tensors, headers bool }

func (a *app) inspectCmd() *cobra.Command {
	var o inspectFlags
	cmd := a.newVerb("inspect [PATH]", "Show what a checkpoint holds, check it, or show the device",
		"Shows architecture, parameters, element types and the share of zeros for every role. PATH is a folder or one .safetensors "+
			"file; without it the device is shown: name, instruction sets, memory and the operations it leaves to the reference "+
			"backend. --verify also checks shapes against config.json and looks for NaN and infinities.",
		"compress inspect testdata/nano/base --verify\ncompress inspect diff testdata/nano/base testdata/nano/sums\ncompress inspect --device cpu", cobra.MaximumNArgs(1),
		func(j *job, args []string) (any, error) {
			if len(args) == 0 {
				return inspectDevice(j)
			}
			return inspect(j, args[0], o)
		})
	f := cmd.Flags()
	f.BoolVar(&o.verify, "verify", false, "also check shapes against the configuration, and every value")
	f.BoolVar(&o.tensors, "tensors", false, "list every tensor")
	f.BoolVar(&o.headers, "headers", false, "read the headers only: no count of zeros")
	cmd.MarkFlagsMutuallyExclusive("verify", "headers")
	cmd.AddCommand(a.inspectDiffCmd())
	return cmd
}

// deviceReport is what inspect says about a device.
type deviceReport struct {
	Device    kernels.Info     `json:"device"`
	Fallbacks map[string]int64 `json:"fallbacks"` // operations left to the reference backend
}

func inspectDevice(j *job) (any, error) {
	dev, err := j.open()
	if err != nil {
		return nil, err
	}
	r := deviceReport{dev.Info(), device.Fallbacks(dev)}
	i := r.Device
	fmt.Fprintf(j.out(), "%s: %s\nfeatures %v, %d threads, %s of %s memory free\n", i.Name, i.Model, i.Features, i.Threads, size(i.Free), size(i.Total))
	if len(r.Fallbacks) == 0 {
		fmt.Fprintln(j.out(), "every operation runs on the device")
	}
	for _, name := range sortedKeys(r.Fallbacks) {
		fmt.Fprintf(j.out(), "left to the reference backend: %s\n", name)
	}
	return r, nil
}

func inspect(j *job, path string, o inspectFlags) (any, error) {
	dev, err := j.open()
	if err != nil {
		return nil, err
	}
	bar := j.bars()
	r, err := checkpoint.Inspect(j.ctx, path, !o.headers, o.verify, checkpoint.Env{Device: dev, Progress: bar.show})
	bar.end()
	if err != nil {
		return nil, err
	}
	printInspection(j, r, o.tensors, !o.headers)
	return r, nil
}
