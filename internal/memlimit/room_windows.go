package memlimit

import (
	"math"

	"github.com/modelcompress/compress/internal/system"
)

// machine is what the machine has left.
func machine() int64 {
	if free, known := system.FreeMemory(); known {
		return free
	}
	return math.MaxInt64
}

// limits are not known on this system.
func limits() int64 { return math.MaxInt64 }
