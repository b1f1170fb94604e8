// Package inspecting shows what a checkpoint holds, how two differ, and what a device can do.
package inspecting

import (
	"fmt"
	"maps"
	"slices"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
)

// Options say how closely a checkpoint is looked at.
type Options struct {
	Verify  bool // shapes against the configuration, and every value
	Tensors bool // list every tensor
	Headers bool // read the headers only
}

// deviceReport is what inspect says about a device.
type deviceReport struct {
	Device    kernels.Info     `json:"device"`
	Fallbacks map[string]int64 `json:"fallbacks"` // operations left to the reference backend
}

// Device shows the device that the flags ask for.
func Device(j *shell.Job) (any, error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}
	r := deviceReport{dev.Info(), device.Fallbacks(dev)}
	i := r.Device
	j.Printf("%s: %s\nfeatures %v, %d threads, %s of %s memory free\n", i.Name, i.Model, i.Features, i.Threads, shell.Size(i.Free), shell.Size(i.Total))
	if len(r.Fallbacks) == 0 {
		fmt.Fprintln(j.Out(), "every operation runs on the device")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Fallbacks)) {
		j.Printf("left to the reference backend: %s\n", name)
	}
	return r, nil
}

// Checkpoint shows a folder or .safetensors file.
func Checkpoint(j *shell.Job, path string, o Options) (any, error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}
	bar := j.Bars()
	r, err := checkpoint.Inspect(j.Ctx, path, !o.Headers, o.Verify, checkpoint.Env{Device: dev, Progress: bar.Show})
	bar.End()
	if err != nil {
		return nil, err
	}
	printInspection(j, r, o.Tensors, !o.Headers)
	return r, nil
}
