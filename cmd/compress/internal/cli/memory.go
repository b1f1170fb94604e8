package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/system"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// fits reports whether the activations of calibration windows, which are held between two blocks, fit into memory.
func fits(m *lm.Model, calib corpus.Windows) error {
	tokens := int64(0)
	for _, row := range calib.IDs {
		tokens += int64(len(row))
	}

	need := tokens * int64(m.Config().Hidden) * 4
	info := m.Device().Info()
	free := info.Free
	if room, limited := MemoryRoom(); limited && info.Host && (free == 0 || room < free) {
		free = room
	}

	if free > 0 && need > free {
		return fmt.Errorf("%s: the activations of %d windows, %d tokens in all, take %s, and %s of memory are free "+
			"(HINT: fewer --samples, or a smaller --seqlen)",
			calib.Source, len(calib.IDs), tokens, Size(need), Size(free))
	}

	return nil
}

// PeakMemory is the largest resident size that the process has had, in bytes; 0 where the system does not tell.
func PeakMemory() int64 { return system.PeakMemory() }

// MemoryRoom is how much memory the process's control group may still use, if it is limited.
func MemoryRoom() (room int64, limited bool) { return memoryRoomIn("/sys/fs/cgroup") }

func memoryRoomIn(dir string) (room int64, limited bool) {
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
