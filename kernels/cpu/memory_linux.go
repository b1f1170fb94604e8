package cpu

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
)

// memory returns the machine's total and available memory in bytes, 0 where unknown.
func memory() (total, free int64) {
	return procField("/proc/meminfo", "MemTotal"), procField("/proc/meminfo", "MemAvailable")
}

// model is the processor's name.
func model() string {
	s, _ := procLine("/proc/cpuinfo", "model name")
	return s
}

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
