package safetensors

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// preallocate reserves the blocks of a file of the given size, so that writing into it cannot run
// out of space. Where the file system cannot reserve, it sets the size after looking at the
// free space, which others may take meanwhile.
func preallocate(f *os.File, size int64) error {
	err := retry(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, size) })
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	if free, ok := freeSpace(f); ok && free < size {
		return unix.ENOSPC
	}
	return f.Truncate(size)
}

