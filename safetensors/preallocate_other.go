//go:build unix && !linux

package safetensors

import (
	"os"

	"golang.org/x/sys/unix"
)

// preallocate sets the size of a file after looking at the free space, which others may take meanwhile: there is no
// portable way to reserve blocks.
func preallocate(f *os.File, size int64) error {
	if free, ok := freeSpace(f); ok && free < size {
		return unix.ENOSPC
	}
	return f.Truncate(size)
}
