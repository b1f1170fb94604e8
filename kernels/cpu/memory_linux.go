package cpu

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// memory returns the machine's total and available memory in bytes, 0 where unknown.
func memory() (total, free int64) {
	var head [512]byte // the two are among the first lines
	text := head[:readStart("/proc/meminfo", head[:])]
	return field(text, "MemTotal"), field(text, "MemAvailable")
}

// model is the processor's name. It is read once: Info is asked for in loops over matrices, and the kernel takes
// tens of microseconds to write the file.
var model = sync.OnceValue(func() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	return line(text, "model name")
})

// readStart reads the beginning of a file with as few system calls as it takes.
func readStart(path string, into []byte) int {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)

	n, err := unix.Read(fd, into)
	if err != nil {
		return 0
	}
	return n
}

// field is the value of a line of /proc/meminfo in bytes; 0 if it is not there.
func field(text []byte, key string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(line(text, key), " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// line is what follows a key and a colon; empty if there is no such line.
func line(text []byte, key string) string {
	sc := bufio.NewScanner(bytes.NewReader(text))
	for sc.Scan() {
		if k, v, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
