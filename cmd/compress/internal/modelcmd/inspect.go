// Package modelcmd is the work of the verbs that look at one model: what its checkpoint holds, how two differ, what a
// device can do, what the model computes on token ids, how it continues a text, how its tokenizer cuts one.
package modelcmd

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
)

// InspectOptions say how closely a checkpoint is looked at.
type InspectOptions struct {
	Verify  bool // shapes against the configuration, and every value
	Tensors bool // list every tensor
	Headers bool // read the headers only
}

// deviceReport is what inspect says about a device.
type deviceReport struct {
	Device     kernels.Info `json:"device"`
	Operations []string     `json:"operations"` // that the device computes itself
	// groups of operations that GPUs have beside these
	Beyond    []string         `json:"beyond,omitempty"`
	Fallbacks map[string]int64 `json:"fallbacks"` // operations left to the reference backend
	Auto      []estimate       `json:"auto"`      // what --device auto reckons with
	Graphics  []kernels.Info   `json:"graphics"`  // GPUs of the machine
	Remark    string           `json:"graphics_remark,omitempty"`
}

// estimate is what --device auto reckons for work on weights of some size.
type estimate struct {
	Work   string  `json:"work"`   // how the weights are used
	Bytes  int64   `json:"bytes"`  // of the weights
	Host   float64 `json:"cpu"`    // seconds on the CPU
	Fits   float64 `json:"fits"`   // seconds on a GPU that holds the weights
	Sent   float64 `json:"sent"`   // seconds on one that is sent them for each pass
	Chosen string  `json:"chosen"` // always, if they fit, or never
}

// large is the size of the weights of the estimates: of eight billion parameters.
const large = 16 << 30

// estimates reckons as --device auto does.
func estimates() (list []estimate) {
	for _, u := range device.Uses() {
		e := estimate{Work: u.String(), Bytes: large, Chosen: "never"}
		e.Host, e.Fits = u.Cost(large, true)
		_, e.Sent = u.Cost(large, false)
		if fits, _ := u.Suits(large, true); fits {
			e.Chosen = "if they fit"
		}
		if sent, _ := u.Suits(large, false); sent {
			e.Chosen = "always"
		}

		list = append(list, e)
	}

	return list
}

// Device shows the device that the flags ask for, and the GPUs of the machine.
func Device(j *cli.Job) (any, error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	r := deviceReport{Device: dev.Info(), Fallbacks: device.Fallbacks(dev), Auto: estimates()}
	r.Operations, r.Beyond = device.Operations(dev)
	i := r.Device
	j.Printf("%s: %s\nfeatures %v, %d threads, %s of %s memory free\n", i.Name, i.Model, i.Features, i.Threads,
		cli.Size(i.Free), cli.Size(i.Total))
	if len(r.Fallbacks) == 0 {
		fmt.Fprintln(j.Out(), "every operation runs on the device")
	}

	j.Printf("%d operations", len(r.Operations))
	if len(r.Beyond) > 0 {
		j.Printf(", and those of %s", strings.Join(r.Beyond, ", "))
	}

	j.Printf("\n")
	for _, name := range slices.Sorted(maps.Keys(r.Fallbacks)) {
		j.Printf("left to the reference backend: %s\n", name)
	}

	r.Graphics, err = device.Graphics()
	for _, g := range r.Graphics {
		j.Printf("GPU %s: %s, features %v, %s of %s memory free\n", g.Name, g.Model, g.Features,
			cli.Size(g.Free), cli.Size(g.Total))
	}

	if err != nil {
		r.Remark = err.Error()
		j.Printf("GPUs: %s\n", r.Remark)
	}

	t := &report.Table{Columns: report.Columns("work on 16 GiB of weights", "CPU, s|%.4g", "they fit, s|%.4g",
		"sent for each pass, s|%.4g", "auto takes a GPU")}
	for _, e := range r.Auto {
		t.Add(e.Work, e.Host, e.Fits, e.Sent, e.Chosen)
	}

	t.Note = "estimates of --device auto, which looks for a GPU from 1 GiB of weights on " +
		"(COMPRESS_AUTO_FROM: another number of bytes)"
	j.Table(t)
	return r, nil
}

// Inspect shows a folder or file with weights, or an importance matrix.
func Inspect(j *cli.Job, path string, o InspectOptions) (any, error) {
	if r, ok := importance(j, path); ok {
		return r, nil
	}

	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	look := checkpoint.Inspect
	if o.Verify {
		look = checkpoint.Verify
	}

	bar := j.Bars()
	r, err := look(j.Ctx, path, checkpoint.InspectOptions{Headers: o.Headers, Device: dev, Progress: bar.Show})
	bar.End()
	if err != nil {
		return nil, err
	}

	printInspection(j, r, o.Tensors, !o.Headers)
	return r, nil
}
