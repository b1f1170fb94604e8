//go:build unix

// Package disk reserves space for files.
package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Retry repeats a system call that a signal interrupted.
func Retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Reserve reserves the blocks of a file of the given size, so that writing into it cannot run out of space. Where that is not
// possible, it sets the size after looking at the free space, which others may take meanwhile.
func Reserve(f *os.File, size int64) error {
	err := Retry(func() error { return reserve(f, size) })
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	if free, ok := Free(f); ok && free < size {
		return unix.ENOSPC
	}
	return f.Truncate(size)
}

// Free gives the bytes that a process without privileges may still write beside f.
func Free(f *os.File) (int64, bool) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &stat); err != nil {
		return 0, false
	}
	return int64(stat.Bavail) * int64(stat.Bsize), true
}
