// Package bench times operations, forward passes and pruning, beside a roofline measured in the same run.
package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
)

// Report is a set of figures with the roofline they were measured under.
type Report struct {
	Suite     string   `json:"suite"`
	Threads   int      `json:"threads"`
	PeakFlops float64  `json:"peak_flops"`     // F32, per second; 0 where it can't be measured
	Bandwidth float64  `json:"read_bandwidth"` // bytes per second
	Cases     []Figure `json:"cases"`
}

// Figure is one timed case.
type Figure struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Repeats int     `json:"repeats"`
	Flops   float64 `json:"flops"`         // of one repetition
	Bytes   float64 `json:"bytes"`         // that one repetition has to move
	PerSec  float64 `json:"gflops"`        // 1e9 operations per second
	GBs     float64 `json:"gb_per_second"` // 1e9 bytes per second
	OfPeak  float64 `json:"of_peak"`       // share of the F32 peak
	OfRead  float64 `json:"of_bandwidth"`  // share of the read bandwidth
	Dense   *Twin   `json:"dense,omitempty"`
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
	run          func() error
	dense        func() error // a twin; nil: none
	denseBytes   float64
}

// readSize exceeds every cache that processors have today by a fair margin.
const readSize = 1 << 30

// Suites are the names that Run knows.
func Suites() []string { return []string{"kernels", "forward", "prune", "sparse"} }

// Options says what to measure.
type Options struct {
	Budget   time.Duration // for each figure
	Model    string        // forward: a checkpoint to run instead of the drawn one
	Seed     uint64        // of the drawn weights
	Progress func(name string, done, total int64)
}

// Run measures one suite on a device.
func Run(ctx context.Context, dev kernels.Device, suite string, o Options) (*Report, error) {
	r := &Report{Suite: suite, Threads: max(dev.Info().Threads, 1)}
	r.roof(dev)
	cases, done, err := r.cases(ctx, dev, o)
	defer done()
	if err != nil {
		return nil, err
	}
	for i, c := range cases {
		f, err := r.measure(ctx, c, o.Budget, dev)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		r.Cases = append(r.Cases, f)
		o.Progress("measuring", int64(i+1), int64(len(cases)))
	}
	r.roof(dev)
	r.shares()
	return r, nil
}

// roof measures the machine's limits and keeps the better of this and an earlier measurement: others may be using it.
func (r *Report) roof(dev kernels.Device) {
	if dev.Info().Name != "cpu" {
		return
	}
	c := cpu.New(cpu.Options{Threads: r.Threads})
	r.PeakFlops = max(r.PeakFlops, c.PeakF32(r.Threads))
	r.Bandwidth = max(r.Bandwidth, c.ReadBandwidth(readSize, r.Threads))
	runtime.GC()
}

// shares puts every figure beside the limits.
func (r *Report) shares() {
	for i := range r.Cases {
		if f := &r.Cases[i]; r.PeakFlops > 0 {
			f.OfPeak, f.OfRead = f.Flops/f.Seconds/r.PeakFlops, f.Bytes/f.Seconds/r.Bandwidth
		}
	}
}

// cases makes what is timed. done gives back what it holds.
func (r *Report) cases(ctx context.Context, dev kernels.Device, o Options) (cases []timed, done func(), err error) {
	switch r.Suite {
	case "kernels":
		cases, err = kernelCases(dev)
	case "forward":
		return forwardCases(ctx, dev, o)
	case "prune":
		cases, err = pruneCases(dev)
	case "sparse":
		return sparseCases(ctx, dev, thinned, o)
	default:
		err = fmt.Errorf("unknown suite %q; known: %v", r.Suite, Suites())
	}
	return cases, func() {}, err
}

// measure repeats a case for the given time, at least three times, and keeps the best.
func (r *Report) measure(ctx context.Context, c timed, budget time.Duration, dev kernels.Device) (Figure, error) {
	f := Figure{Name: c.name, Flops: c.flops, Bytes: c.bytes}
	best, twin := time.Duration(1<<63-1), time.Duration(1<<63-1)
	for begin := time.Now(); f.Repeats < 3 || time.Since(begin) < budget; f.Repeats++ {
		if err := ctx.Err(); err != nil {
			return f, err
		}
		if err := fastest(dev, c.run, &best); err != nil {
			return f, err
		}
		if c.dense != nil {
			if err := fastest(dev, c.dense, &twin); err != nil {
				return f, err
			}
		}
	}
	f.Seconds = max(best, 1).Seconds()
	f.PerSec, f.GBs = c.flops/f.Seconds/1e9, c.bytes/f.Seconds/1e9
	if c.dense != nil {
		f.Dense = &Twin{Seconds: twin.Seconds(), Bytes: c.denseBytes, Faster: twin.Seconds() / f.Seconds, Smaller: c.denseBytes / c.bytes}
	}
	return f, nil
}

// fastest times a run and keeps the best.
func fastest(dev kernels.Device, run func() error, best *time.Duration) error {
	start := time.Now()
	err := run()
	if err == nil {
		err = dev.Ops().Sync()
	}
	if err == nil {
		*best = min(*best, time.Since(start))
	}
	return err
}
