// Package device opens a compute device by name. It is the only place that knows every backend. Operations that
// a backend lacks are filled in from the reference backend, and every use of such a fallback is counted.
//
// # Use
//
//	dev, err := device.Open("auto", device.Options{}) // a GPU if there is one; or "cpu", "cuda:0", "ref"
//	defer dev.Close()
//	model, err := lm.Load(ctx, "MODEL", dev, lm.Options{})
//
// A device outlives the models that are loaded on it. Results on the CPU do not depend on Options.Threads.
package device

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/ref"
)

// Options of [Open].
type Options struct {
	Threads int // CPU threads of a host device; 0: one for each processor
	// bytes of weights that the work reads, as far as known: "auto" looks for a graphics processor from
	// [LargeWork] on
	Work int64
	Use  Use // how it uses them: "auto" takes one if [Use.Suits] says so

	// Note, if not nil, is told in one line why "auto" takes the CPU although there are graphics processors and
	// the work is large, and when a graphics processor's memory is full for the first time. It must not use the
	// device.
	Note func(string)
}

var (
	// ErrUnknown is the error of a name that is no device's.
	ErrUnknown = failure.Misuse("unknown device", "")
	// ErrNoDevice is the error of a device that this machine or this build does not have.
	ErrNoDevice = errors.New("no such device")
)

// Open opens a device: "cpu", "ref", "cuda:N" (N counts from 0), or "auto" for the fastest that is present and
// suits the work. The empty name is "auto".
func Open(name string, o Options) (kernels.Device, error) {
	if o.Threads < 0 {
		return nil, fmt.Errorf("device %q: %d threads; want 0 (all of the %d processors) or more", name, o.Threads,
			runtime.GOMAXPROCS(0))
	}

	switch kind, index, indexed := strings.Cut(name, ":"); {
	case name == "" || name == "auto":
		if dev := automatic(o); dev != nil {
			return dev, nil
		}
		fallthrough
	case name == "cpu":
		return Complete(cpu.New(cpu.Options{Threads: o.Threads})), nil
	case name == "ref":
		return ref.New(), nil
	case kind == "cuda":
		if n, err := strconv.ParseUint(index, 10, 16); indexed && (err != nil || strconv.FormatUint(n, 10) != index) {
			return nil, fmt.Errorf("%w %q: %q is not a board's number; known devices: %s", ErrUnknown, name, index,
				known)
		}
		n, _ := strconv.Atoi(index) // none is the first
		return graphics(n, o.Note)
	}

	return nil, fmt.Errorf("%w %q; known devices: %s", ErrUnknown, name, known)
}

// Backends lists the kinds of devices that this build can open: "cpu", "ref" and, unless it was built with
// -tags nogpu or for another platform than Linux on amd64 or arm64, "cuda".
func Backends() []string { return slices.Clone(backends) }

const known = "auto, cpu, ref, cuda:N"
