// Package memory tells how much memory the process has used and may use.
package memory

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Peak is the largest resident size that the process has had, in bytes; 0 where the system does not tell.
func Peak() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return int64(u.Maxrss) // bytes there, KiB elsewhere
	}
	return int64(u.Maxrss) << 10
}

// Room is how much memory the process's control group may still use, if it is limited.
func Room() (room int64, limited bool) { return roomIn("/sys/fs/cgroup") }

func roomIn(dir string) (room int64, limited bool) {
	for _, names := range [][2]string{
		{"memory.max", "memory.current"},
		{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"},
	} {
		most, errMost := readNumber(dir + "/" + names[0])
		used, errUsed := readNumber(dir + "/" + names[1])
		if errMost == nil && errUsed == nil && most < 1<<60 {
			return max(0, most-used), true
		}
	}
	return 0, false
}

func readNumber(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
