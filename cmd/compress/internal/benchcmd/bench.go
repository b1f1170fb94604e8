// Package benchcmd times operations and whole pieces of work, beside a roofline measured in the same run, and
// compares two such runs.
package benchcmd

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
)

// Report is a set of figures with the roofs they were measured under.
type Report struct {
	Suite   string   `json:"suite"`
	Machine Machine  `json:"machine"`
	Roofs   []Roof   `json:"roofs"` // one for each number of threads; none for a device whose limits can't be measured
	Cases   []Figure `json:"cases"`
}

// Machine says where a report comes from.
type Machine struct {
	Device     string   `json:"device"`
	Model      string   `json:"model"`
	Features   []string `json:"features"` // instruction sets that the kernels use
	Processors int      `json:"processors"`
	System     string   `json:"system"`
	Go         string   `json:"go"`
}

// String names a machine by what tells two of them apart in a comparison.
func (m Machine) String() string { return fmt.Sprintf("%s with %d processors", m.Model, m.Processors) }

// Figure is one timed case. Times are of the clock but for CPU.
type Figure struct {
	Suite   string  `json:"suite"`
	Name    string  `json:"name"`
	Threads int     `json:"threads"`
	Repeats int     `json:"repeats"`
	Seconds float64 `json:"seconds"`     // median of the repetitions
	Fastest float64 `json:"seconds_min"` // shortest
	Low     float64 `json:"seconds_q1"`  // first and third quartile
	High    float64 `json:"seconds_q3"`
	CPU     float64 `json:"cpu_seconds"`   // median of the processor's time, of all threads
	Flops   float64 `json:"flops"`         // of one repetition; 0: not counted
	Bytes   float64 `json:"bytes"`         // that one repetition has to move; 0: not counted
	Rate    float64 `json:"gflops"`        // 1e9 operations per second
	GBs     float64 `json:"gb_per_second"` // 1e9 bytes per second
	// share of the operations per second of the widest float32 set, of AMX where weights are bfloat16, of AMX or VNNI
	// where activations are rounded to bytes
	OfPeak *float64 `json:"of_peak"`
	OfRead *float64 `json:"of_bandwidth"` // share of the read bandwidth
	// the roof that is nearest: memory or an instruction set; "" where nothing is counted
	Limit string   `json:"limit"`
	Share *float64 `json:"share"` // of that roof
	Dense *Twin    `json:"dense,omitempty"`

	half, small bool // the peak is that of bfloat16, or of bytes
}

// Twin is the same work on weights that are not packed, timed in turn with it.
type Twin struct {
	Seconds float64 `json:"seconds"`
	Bytes   float64 `json:"bytes"`
	Faster  float64 `json:"ratio"`       // its time over that of the packed weights
	Smaller float64 `json:"bytes_ratio"` // its bytes over those of the packed weights
}

// timed is something to measure.
type timed struct {
	name         string
	flops, bytes float64
	half         bool // its products may be of bfloat16
	small        bool // its products may be of bytes
	run          func() error
	after        func() error // undoes a repetition, untimed; nil: nothing to undo
	// steps, in place of run, does work of n steps and calls mark at the end of each.
	steps      func(n int, mark func()) error
	dense      func() error // a twin; nil: none
	denseBytes float64
}

// Options says what to measure.
type Options struct {
	Budget   time.Duration // for each figure, after the least number of repetitions
	Model    string        // forward: a checkpoint to run instead of the random one
	Seed     uint64        // of the random weights
	Threads  []int         // numbers of threads to measure with; none: that of the device
	Progress func(name string, done, total int64)
}

// All is the suite that is made of the others.
const All = "all"

// suites are the suites by name. Those that All leaves out take too much memory for a machine that is not known.
var suites = []struct {
	name  string
	inAll bool
	cases func(ctx context.Context, dev kernels.Device, b *bed, o Options) ([]timed, error)
}{
	{"kernels", true, kernelCases},
	{"merge", true, mergeCases},
	{"prune", true, pruneCases},
	{"forward", true, forwardCases},
	{"train", true, trainCases},
	{"eval", true, evalCases},
	{"search", true, searchCases},
	{"edit", true, editCases},
	{"sparse", false, thinCases},
}

// Suites are the names that Run knows.
func Suites() []string {
	names := []string{All}
	for _, s := range suites {
		names = append(names, s.name)
	}
	return names
}

// Run measures a suite on a device, or all of them.
func Run(ctx context.Context, dev kernels.Device, suite string, o Options) (*Report, error) {
	if !slices.Contains(Suites(), suite) {
		return nil, fmt.Errorf("unknown suite %q; known: %v", suite, Suites())
	}

	info := dev.Info()
	r := &Report{Suite: suite, Machine: machine(info)}
	b := &bed{seed: o.Seed}
	defer b.close()

	if len(o.Threads) == 0 || !info.Host || info.Name == "ref" {
		o.Threads = []int{max(info.Threads, 1)}
	}

	for _, threads := range o.Threads {
		d, err := device.Open(info.Name, device.Options{Threads: threads})
		if err != nil {
			return nil, err
		}
		defer d.Close()

		roof := newRoof(d, threads)
		if err := ctx.Err(); err != nil {
			return nil, err
		}

		for _, s := range suites {
			if s.name != suite && (suite != All || !s.inAll) {
				continue
			}

			figures, err := measureSuite(ctx, d, b, o, s.name, s.cases)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}

			for i := range figures {
				figures[i].Suite, figures[i].Threads = s.name, threads
			}

			r.Cases = append(r.Cases, figures...)
			roof.again(d)
		}

		if roof != nil {
			r.Roofs = append(r.Roofs, *roof)
		}
	}

	r.shares()
	return r, nil
}

func machine(info kernels.Info) Machine {
	return Machine{
		Device: info.Name, Model: info.Model, Features: info.Features, Processors: runtime.NumCPU(),
		System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(),
	}
}

// measureSuite makes the cases of a suite, times them, and gives their memory back.
func measureSuite(ctx context.Context, dev kernels.Device, b *bed, o Options, name string,
	make func(context.Context, kernels.Device, *bed, Options) ([]timed, error),
) ([]Figure, error) {
	defer runtime.GC()
	defer b.release()

	cases, err := make(ctx, dev, b, o)
	if err != nil {
		return nil, err
	}

	var list []Figure
	for i, c := range cases {
		f, err := measure(ctx, c, o.Budget, dev)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		list = append(list, f)
		o.Progress("measuring "+name, int64(i+1), int64(len(cases)))
	}

	return list, nil
}
