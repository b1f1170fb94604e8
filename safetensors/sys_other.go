//go:build unix && !linux

package safetensors

import (
	"os"

	"golang.org/x/sys/unix"
)

// preallocate sets the size after looking at the free space, which others may take meanwhile:
// these systems share no call that reserves blocks.
func preallocate(f *os.File, size int64) error {
	if free, ok := freeSpace(f); ok && free < size {
		return unix.ENOSPC
	}
	return f.Truncate(size)
}

// renameNew renames without replacing anything: fs.ErrExist if there is a file of the new name.
func renameNew(from, to string) error { return linkNew(from, to) }
