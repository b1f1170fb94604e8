package benchcmd

import (
	"runtime"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
)

// Roof is what the machine can do at most with a number of threads.
type Roof struct {
	Threads int        `json:"threads"`
	Read    float64    `json:"read_bandwidth"` // bytes per second
	Peaks   []cpu.Peak `json:"peaks"`          // multiply-adds by instruction set, in float32 but for AMX and VNNI
}

// memoryLimit is the name of the bandwidth among the limits.
const memoryLimit = "memory"

// readSize exceeds every cache that processors have today by a fair margin.
const readSize = 1 << 30

// newRoof measures the limits; nil for a device that has no such measurement.
func newRoof(dev kernels.Device, threads int) *Roof {
	if dev.Info().Name != "cpu" {
		return nil
	}
	r := &Roof{Threads: threads}
	r.Read = cpu.New(cpu.Options{Threads: threads}).ReadBandwidth(readSize, threads)
	r.again(dev)
	runtime.GC()
	return r
}

// again measures the limits of arithmetic once more and keeps the better figures: others may be using the machine.
func (r *Roof) again(dev kernels.Device) {
	if r == nil {
		return
	}

	c, ok := dev.(*cpu.Device)
	if !ok {
		c = cpu.New(cpu.Options{Threads: r.Threads})
	}

	for i, p := range c.Peaks(r.Threads) {
		if i == len(r.Peaks) {
			r.Peaks = append(r.Peaks, p)
		}
		r.Peaks[i].Flops = max(r.Peaks[i].Flops, p.Flops)
	}
}

// peak is the limit of arithmetic: in float32, or that of bfloat16 or of bytes where there is one and it counts.
func (r *Roof) peak(half, small bool) cpu.Peak {
	best := cpu.Peak{}
	for _, p := range r.Peaks {
		if (p.Set != cpu.AMX || half) && (!p.Bytes() || small) {
			best = p
		}
	}
	return best
}

// shares puts every figure beside the limits.
func (r *Report) shares() {
	for i := range r.Roofs {
		for j := range r.Cases {
			if f := &r.Cases[j]; f.Threads == r.Roofs[i].Threads {
				f.under(&r.Roofs[i])
			}
		}
	}
}

// under fills in the shares of a roof. Rates are those of the median.
func (f *Figure) under(r *Roof) {
	share := func(rate, limit float64) *float64 {
		if rate == 0 || limit == 0 {
			return nil
		}
		s := rate / limit
		return &s
	}

	p := r.peak(f.half, f.small)
	f.OfPeak, f.OfRead = share(1e9*f.Rate, p.Flops), share(1e9*f.GBs, r.Read)
	if f.OfRead != nil {
		f.Limit, f.Share = memoryLimit, f.OfRead
	}
	if f.OfPeak != nil && (f.Share == nil || *f.OfPeak > *f.Share) {
		f.Limit, f.Share = p.Set, f.OfPeak
	}
}
