//go:build !nogpu && linux && (amd64 || arm64)

package device

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
)

// backends are the kinds of devices that this build can open.
var backends = []string{"cpu", "ref", "cuda"}

// graphics opens a graphics processor.
func graphics(index int, note func(string)) (kernels.Device, error) {
	d, err := cuda.Open(index, cuda.Options{Note: note})
	if errors.Is(err, cuda.ErrNoDevice) {
		return nil, missing{err}
	}
	if err != nil {
		return nil, err
	}
	return Complete(d), nil
}

// missing is the backend's error about a device that is not there, as [ErrNoDevice].
type missing struct{ error }

// Is reports what the error is.
func (m missing) Is(target error) bool { return target == ErrNoDevice }

// automatic opens the graphics processor with the most free memory, if the work is large enough for one and fits beside what it
// computes; nil otherwise.
func automatic(o Options) kernels.Device {
	if o.Work < LargeWork {
		return nil
	}
	best, free := -1, o.Work+o.Work/4
	list, _ := Graphics()
	for i, info := range list {
		if info.Free > free {
			best, free = i, info.Free
		}
	}
	if best < 0 {
		if len(list) > 0 {
			o.note(fmt.Sprintf("the CPU is used: %.1f GiB of weights and a quarter more for what is computed fit into the free memory of none of %d graphics processors",
				float64(o.Work)/(1<<30), len(list)))
		}
		return nil
	}
	d, err := graphics(best, o.Note)
	if err != nil {
		o.note(fmt.Sprintf("the CPU is used: %v", err))
		return nil
	}
	return d
}

func (o Options) note(line string) {
	if o.Note != nil {
		o.Note(line)
	}
}

// Graphics describes the graphics processors of the machine. The error says why there is none, or why the one after the last in the
// list cannot be used.
func Graphics() ([]kernels.Info, error) {
	n, err := cuda.Count(cuda.Options{})
	if err != nil {
		return nil, err
	}
	var list []kernels.Info
	for i := range n {
		d, err := cuda.Open(i, cuda.Options{})
		if err != nil {
			return list, err
		}
		list = append(list, d.Info())
		if err := d.Close(); err != nil {
			return list, err
		}
	}
	return list, nil
}
