package cpu

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// memory returns the machine's total and available memory in bytes, 0 where unknown.
func memory() (total, free int64) { return totalMemory(), available.read() }

// available is the memory that is available, as it was a moment ago: whether a device is the host is asked for every
// matrix, and each answer has the memory in it.
var available memoryGauge

// memoryGauge remembers what it has read for a moment.
type memoryGauge struct {
	mu    sync.Mutex
	until time.Time
	bytes int64
}

// moment is how old an answer may be: far less than it takes to fill any memory by a noticeable part.
const moment = 50 * time.Millisecond

func (g *memoryGauge) read() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()

	if now := time.Now(); now.After(g.until) {
		g.bytes = procField("/proc/meminfo", "MemAvailable")
		g.until = now.Add(moment)
	}

	return g.bytes
}

// What does not change while a process runs is read once: callers ask a device what it is for every matrix, and the
// kernel writes /proc/cpuinfo anew for each reader, with a paragraph for each processor whose clock it first measures.
var (
	totalMemory = sync.OnceValue(func() int64 { return procField("/proc/meminfo", "MemTotal") })

	// model is the processor's name.
	model = sync.OnceValue(func() string {
		s, _ := procLine("/proc/cpuinfo", "model name")
		return s
	})
)

func procField(file, key string) int64 {
	s, _ := procLine(file, key)
	n, err := strconv.ParseInt(strings.TrimSuffix(s, " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

func procLine(file, key string) (string, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}

	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		if k, v, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v), true
		}
	}

	return "", false
}
