package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// peakRepeats is how often a figure of the machine is taken; the best one counts.
const peakRepeats = 5

// Peak is the limit of an instruction set.
type Peak struct {
	Set string `json:"set"` // as COMPRESS_CPU_DISABLE has it, [AMXInt8] or "portable"
	// of multiply-adds, which count twice: in float32, of [AMX] in bfloat16, of those that are [Peak.Bytes] in bytes
	Flops float64 `json:"flops_per_second"`
}

// AMX names the instruction set whose factors are bfloat16, AMXInt8, VNNI, AVXVNNI, DotProd and I8MM
// those whose factors are bytes.
const (
	AMX     = "amx"
	AMXInt8 = "amx-int8"
	VNNI    = "avx512vnni"
	AVXVNNI = "avxvnni"
	DotProd = "dotprod"
	I8MM    = "i8mm"
)

// Bytes reports whether a limit is that of products of bytes.
func (p Peak) Bytes() bool {
	return p.Set == AMXInt8 || p.Set == VNNI || p.Set == AVXVNNI || p.Set == DotProd || p.Set == I8MM
}

// peakKernel is a loop that only multiplies and adds, and the floating-point operations of one round.
type peakKernel struct {
	set   string
	run   func(rounds int)
	flops int
}

// Peaks measures the processor's limits for multiply-adds with the given number of threads (at least 1), one
// for every instruction set that the device may use: the roofs over the product's kernels. Those in float32
// come first, the widest last among them. It takes some tens of milliseconds.
func (d *Device) Peaks(threads int) []Peak {
	const rounds = 1 << 19
	var list []Peak
	for _, k := range peakKernels(d.isa) {
		best := bestTime(threads, func(int) { k.run(rounds) })
		list = append(list, Peak{k.set, float64(rounds) * float64(k.flops) * float64(max(1, threads)) / best.Seconds()})
	}
	return list
}

// PeakF32 measures the processor's limit for float32 multiply-adds with its widest instruction set; see [Device.Peaks].
func (d *Device) PeakF32(threads int) float64 {
	best := 0.0
	for _, p := range d.Peaks(threads) {
		if p.Set != AMX && !p.Bytes() {
			best = p.Flops
		}
	}
	return best
}

// ReadBandwidth measures how fast the given number of threads (at least 1) read size bytes, in bytes per
// second: the roof over products of few rows. It allocates size bytes, which should exceed the caches, and
// reads them a few times.
func (d *Device) ReadBandwidth(size int64, threads int) float64 {
	memory := make([]byte, max(1, size/1024)*1024)
	for i := range memory {
		memory[i] = byte(i)
	}
	best := bestTime(1, func(int) { d.readShares(memory, max(1, threads)) })
	return float64(len(memory)) / best.Seconds()
}

// readShares reads p, all but a rest below threads·1024 bytes, a share per thread.
func (d *Device) readShares(p []byte, threads int) {
	share := len(p) / threads / 1024 * 1024
	if share == 0 {
		return
	}

	var sums atomic.Uint64
	var wg sync.WaitGroup
	for t := range threads {
		wg.Go(func() { sums.Add(readStream(d.isa, unsafe.Pointer(&p[t*share]), share)) })
	}

	wg.Wait()
}

// bestTime runs f(0) to f(threads-1) at the same time, several times, and returns the shortest time.
func bestTime(threads int, f func(thread int)) time.Duration {
	best := time.Duration(1<<63 - 1)
	for range peakRepeats {
		start := time.Now()
		var wg sync.WaitGroup
		for t := 1; t < threads; t++ {
			wg.Go(func() { f(t) })
		}

		f(0)
		wg.Wait()
		best = min(best, time.Since(start))
	}

	return max(best, 1)
}

// portablePeak is the loop in Go.
var portablePeak = peakKernel{"portable", peakPortable, 16}

// peakPortable runs n rounds of eight multiply-adds in Go.
func peakPortable(n int) {
	var s [8]float32
	x := float32(n)
	for range n {
		for i := range s {
			s[i] += x * x
		}
	}
	runtime.KeepAlive(s)
}

// readStreamPortable sums the words of p in Go.
func readStreamPortable(p []uint64) uint64 {
	var a, b, c, d uint64
	for ; len(p) >= 4; p = p[4:] {
		a += p[0]
		b += p[1]
		c += p[2]
		d += p[3]
	}
	return a + b + c + d
}
