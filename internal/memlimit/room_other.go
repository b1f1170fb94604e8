//go:build !linux && !windows

package memlimit

import "math"

// machine is not known on this system.
func machine() int64 { return math.MaxInt64 }

// limits are not known on this system.
func limits() int64 { return math.MaxInt64 }
