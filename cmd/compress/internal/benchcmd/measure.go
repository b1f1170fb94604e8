package benchcmd

import (
	"context"
	"slices"
	"time"

	"github.com/modelcompress/compress/internal/cputime"
	"github.com/modelcompress/compress/kernels"
)

// leastRepeats is how often a case runs at least, not counting a first time that warms up.
const leastRepeats = 5

// clocks are the two times of a repetition, in seconds.
type clocks struct{ wall, cpu []float64 }

// watch is the time at which a repetition began.
type watch struct {
	wall time.Time
	cpu  float64
}

func startWatch() watch { return watch{time.Now(), processorSeconds()} }

// stop notes a repetition.
func (w watch) stop(into *clocks) {
	into.wall = append(into.wall, max(time.Since(w.wall), 1).Seconds())
	into.cpu = append(into.cpu, processorSeconds()-w.cpu)
}

// processorSeconds is the time that this process has had on processors.
func processorSeconds() float64 { return cputime.Process().Seconds() }

// measure repeats a case for the given time, at least five times after one that does not count.
func measure(ctx context.Context, c timed, budget time.Duration, dev kernels.Device) (Figure, error) {
	f := Figure{Name: c.name, Flops: c.flops, Bytes: c.bytes, half: c.half, small: c.small}
	var times, twin clocks
	err := error(nil)
	if c.steps != nil {
		err = c.sample(ctx, &times)
	} else {
		err = c.repeat(ctx, budget, dev, &times, &twin)
	}
	if err != nil {
		return f, err
	}

	f.Repeats = len(times.wall)
	f.summarise(times)

	if c.dense != nil {
		other := quantile(twin.wall, 0.5)
		f.Dense = &Twin{Seconds: other, Bytes: c.denseBytes, Faster: other / f.Seconds, Smaller: c.denseBytes / c.bytes}
	}

	return f, nil
}

// repeat runs a case, and in turn its twin if it has one.
func (c *timed) repeat(ctx context.Context, budget time.Duration, dev kernels.Device, times, twin *clocks) error {
	var warm clocks
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.once(dev, c.run, &warm); err != nil {
		return err
	}

	for begin := time.Now(); len(times.wall) < leastRepeats || time.Since(begin) < budget; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.once(dev, c.run, times); err != nil {
			return err
		}

		if c.dense != nil {
			if err := c.once(dev, c.dense, twin); err != nil {
				return err
			}
		}
	}

	return nil
}

// once times a run, and undoes it.
func (c *timed) once(dev kernels.Device, run func() error, into *clocks) error {
	w := startWatch()
	err := run()
	if err == nil {
		err = dev.Ops().Sync()
	}
	if err == nil {
		w.stop(into)
	}

	if c.after != nil && err == nil {
		err = c.after()
	}

	return err
}

// sample times the steps of a case that is one piece of work; the first does not count.
func (c *timed) sample(ctx context.Context, times *clocks) error {
	if err := ctx.Err(); err != nil {
		return err
	}

	var w watch
	n := 0
	return c.steps(leastRepeats+1, func() {
		n++
		if n > 1 {
			w.stop(times)
		}
		w = startWatch()
	})
}

// summarise fills in what the times say.
func (f *Figure) summarise(t clocks) {
	f.Seconds, f.Fastest = quantile(t.wall, 0.5), quantile(t.wall, 0)
	f.Low, f.High = quantile(t.wall, 0.25), quantile(t.wall, 0.75)
	f.CPU = quantile(t.cpu, 0.5)
	f.Rate, f.GBs = f.Flops/f.Seconds/1e9, f.Bytes/f.Seconds/1e9
}

// quantile interpolates between the two values next to a rank, as is usual; 0 of none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}

	s := slices.Sorted(slices.Values(values))
	at := q * float64(len(s)-1)
	i := min(int(at), max(len(s)-2, 0))
	if i+1 == len(s) {
		return s[i]
	}

	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}
