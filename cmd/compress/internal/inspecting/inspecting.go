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
	Graphics  []kernels.Info   `json:"graphics"`  // graphics processors of the machine
	Remark    string           `json:"graphics_remark,omitempty"`
}

// Device shows the device that the flags ask for, and the graphics processors of the machine.
func Device(j *shell.Job) (any, error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}
	r := deviceReport{Device: dev.Info(), Fallbacks: device.Fallbacks(dev)}
	i := r.Device
	j.Printf("%s: %s\nfeatures %v, %d threads, %s of %s memory free\n", i.Name, i.Model, i.Features, i.Threads, shell.Size(i.Free), shell.Size(i.Total))
	if len(r.Fallbacks) == 0 {
		fmt.Fprintln(j.Out(), "every operation runs on the device")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Fallbacks)) {
		j.Printf("left to the reference backend: %s\n", name)
	}
	r.Graphics, err = device.Graphics()
	for _, g := range r.Graphics {
		j.Printf("graphics processor %s: %s, features %v, %s of %s memory free\n", g.Name, g.Model, g.Features, shell.Size(g.Free), shell.Size(g.Total))
	}
	if err != nil {
		r.Remark = err.Error()
		j.Printf("graphics processors: %s\n", r.Remark)
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
