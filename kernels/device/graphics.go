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

// Unwrap gives the backend's error, which has a hint.
func (m missing) Unwrap() error { return m.error }

// automatic opens the graphics processor with the most free memory, if that suits the work; nil otherwise.
// Weights that do not fit beside what is computed, a quarter of them, are sent anew for every pass.
func automatic(o Options) kernels.Device {
	if from, _ := threshold(); o.Work < from || o.Use == Once {
		return nil
	}

	best, free := -1, int64(0)
	list, _ := Graphics()
	for i, info := range list {
		if info.Free > free {
			best, free = i, info.Free
		}
	}

	if best < 0 {
		return nil
	}

	fits := free > o.Work+o.Work/4
	if ok, why := o.Use.Suits(o.Work, fits); !ok {
		o.note(fmt.Sprintf("the CPU is used: of %d graphics processors the one with the most memory has %s free for "+
			"%s of weights; %s", len(list), gib(free), gib(o.Work), why))
		return nil
	}

	d, err := graphics(best, o.Note)
	if err != nil {
		o.note(fmt.Sprintf("the CPU is used: %v", err))
		return nil
	}

	if !fits {
		o.note(fmt.Sprintf("%s is used: %s of %s of weights fit at a time, the others are sent for each pass",
			d.Info().Name, gib(free), gib(o.Work)))
	}

	return d
}

func (o Options) note(line string) {
	if o.Note != nil {
		o.Note(line)
	}
}

// Graphics describes the graphics processors of the machine. The error says why there is none, or why the one
// after the last in the list cannot be used.
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
