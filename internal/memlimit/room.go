// Package memlimit tells how much memory the process may still take, so that what cannot fit is refused with a
// line before it is allocated: a Go program that runs out of memory ends at once.
package memlimit

import (
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"runtime/metrics"
)

// ErrMemory: something takes more memory than there is.
var ErrMemory = errors.New("not enough memory")

// Large is the size, in bytes, from which an allocation is worth a look at what is free.
const Large = 16 << 20

// Free is how many bytes the process may still take: what the machine has, its control group and its limits
// allow, and what the heap holds unused. It is false where the system does not tell.
func Free() (int64, bool) {
	free, space := machine(), limits()
	if free == math.MaxInt64 && space == math.MaxInt64 {
		return 0, false
	}
	held := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(held)
	idle, released := int64(held[0].Value.Uint64()), int64(held[1].Value.Uint64())
	return min(plus(free, idle), plus(space, idle+released)), true
}

// Check returns an error that wraps [ErrMemory] if need bytes are more than are free, garbage taken back. need
// is a float because it may be the product of numbers that somebody gave.
func Check(need float64) error {
	if fits(need) {
		return nil
	}
	debug.FreeOSMemory()
	if fits(need) {
		return nil
	}
	free, _ := Free()
	return fmt.Errorf("%w: %s are needed, and %s are free", ErrMemory, size(need), size(float64(free)))
}

func fits(need float64) bool {
	free, known := Free()
	return !known && need < math.MaxInt64 || need <= float64(free)
}

// plus adds to a number whose largest value means no limit.
func plus(n, more int64) int64 {
	if n > math.MaxInt64-more {
		return math.MaxInt64
	}
	return n + more
}

func size(n float64) string {
	for _, u := range []string{"KiB", "MiB", "GiB"} {
		if n /= 1024; n < 1000 || u == "GiB" {
			return fmt.Sprintf("%.4g %s", n, u)
		}
	}
	return ""
}
