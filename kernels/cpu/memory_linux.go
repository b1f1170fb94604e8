package cpu

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
)

// memory returns the machine's total and available memory in bytes, 0 where unknown.
func memory() (total, free int64) {
	return totalMemory(), procField("/proc/meminfo", "MemAvailable")
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
