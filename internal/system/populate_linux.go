package system

import "golang.org/x/sys/unix"

// Populate maps whole pages of a mapped file at once, which costs less than a fault for every few of them. It is
// advice, and may fail.
func Populate(data []byte) { _ = unix.Madvise(data, unix.MADV_POPULATE_READ) }
