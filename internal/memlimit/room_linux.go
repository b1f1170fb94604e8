package memlimit

import (
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what the machine and the process's control group have left.
func machine() int64 {
	free := int64(math.MaxInt64)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if n := field(string(text), "MemAvailable:"); n > 0 {
			free = n + field(string(text), "SwapFree:")
		}
	}

	most, used := number("/sys/fs/cgroup/memory.max"), number("/sys/fs/cgroup/memory.current")
	if most >= 0 && used >= 0 {
		free = min(free, max(0, most-used))
	}

	return free
}

// limits is what the limit on the address space leaves.
func limits() int64 {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &r) != nil || r.Cur > math.MaxInt64 {
		return math.MaxInt64
	}

	text, err := os.ReadFile("/proc/self/statm")
	pages, _, _ := strings.Cut(string(text), " ")
	n, errN := strconv.ParseInt(pages, 10, 64)
	if err != nil || errN != nil {
		return math.MaxInt64
	}

	return max(0, int64(r.Cur)-n*int64(os.Getpagesize()))
}

// field is a line of /proc/meminfo in bytes; 0 if it is not there.
func field(text, name string) int64 {
	_, rest, _ := strings.Cut(text, name)
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(line), " kB"), 10, 64)
	return n << 10
}

// number is a file with one number; -1 if it has none, as where there is no limit.
func number(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
