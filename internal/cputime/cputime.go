// Package cputime measures processor time: what this process has used, and what of the machine was idle
// meanwhile. Wall time says little about work on a machine that others use too.
package cputime

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"github.com/modelcompress/compress/internal/system"
)

// Process returns the processor time of this process, on all of its threads.
func Process() time.Duration { return system.ProcessorTime() }

// Watch is a stretch of time that has begun.
type Watch struct {
	start time.Time
	cpu   time.Duration
	idle  time.Duration
	known bool
}

// Start begins a stretch of time.
func Start() Watch {
	w := Watch{start: time.Now(), cpu: Process()}
	w.idle, w.known = idle()
	return w
}

// Stop returns what the time since the start was spent on. The watch may be read again.
func (w Watch) Stop() Span {
	s := Span{Wall: time.Since(w.start), CPU: Process() - w.cpu, Idle: -1}
	if now, ok := idle(); ok && w.known {
		s.Idle = max(0, now-w.idle)
	}
	return s
}

// Span is what a stretch of time was spent on.
type Span struct {
	Wall time.Duration
	CPU  time.Duration // of this process
	Idle time.Duration // of all processors together; negative where the system does not tell
}

// Add joins two stretches.
func (s Span) Add(t Span) Span {
	out := Span{Wall: s.Wall + t.Wall, CPU: s.CPU + t.CPU, Idle: -1}
	if s.Idle >= 0 && t.Idle >= 0 {
		out.Idle = s.Idle + t.Idle
	}
	return out
}

// Free is how many processors work with so many threads can have: those that the process had, and those that
// were idle. It is all of them where the system does not tell, or where the stretch is too short for its clock.
func (s Span) Free(threads int) float64 {
	const clock = 50 * time.Millisecond // the system counts in hundredths of a second
	if s.Idle < 0 || s.Wall < clock {
		return float64(threads)
	}
	had := float64(s.CPU+s.Idle) / float64(s.Wall)
	return min(float64(threads), max(had, 1/float64(1+threads)))
}

// idle is the time that the machine's processors have been idle since it started, together.
func idle() (time.Duration, bool) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	return parse(text, tick)
}

// parse reads the first line of /proc/stat: cpu, then the times in user, nice, system and idle mode, and
// waiting for disks.
func parse(text []byte, tick time.Duration) (time.Duration, bool) {
	line, _, _ := bytes.Cut(text, []byte{'\n'})
	fields := bytes.Fields(line)
	if len(fields) < 6 || string(fields[0]) != "cpu" {
		return 0, false
	}

	var sum int64
	for _, f := range fields[4:6] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil || n < 0 {
			return 0, false
		}
		sum += n
	}

	return time.Duration(sum) * tick, true
}
