package main

import "golang.org/x/sys/unix"

// peakMemory is the largest resident size that the process has had, in bytes; 0 where the system does not tell.
func peakMemory() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Maxrss << 10
}
