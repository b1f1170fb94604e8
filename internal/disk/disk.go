//go:build unix

// Package disk reserves space for files.
package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Check looks whether need bytes fit onto the file system of a folder, of which own bytes are taken by files
// that will be overwritten. It returns a [*ShortError] where they do not, and nil where the file system does
// not tell, or says 0, which some do that have room: those find out when the space is reserved.
func Check(dir string, need, own int64) error {
	f, err := os.Open(dir)
	if err != nil {
		return nil // a folder that files can be made in, but that cannot be read
	}
	defer f.Close()
	free, most := Free(f)
	return fits(need, own, free, most)
}

func fits(need, own, free, most int64) error {
	if free <= 0 || most <= 0 || need-own <= most {
		return nil
	}
	return &ShortError{need, free, unix.ENOSPC}
}

// Retry repeats a system call that a signal interrupted.
func Retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ShortError says that a file system has less room than a file needs. It wraps the system's reason, as [unix.ENOSPC].
type ShortError struct {
	Need, Free int64 // bytes; Free is -1 where the system does not tell
	Err        error
}

// Error implements error.
func (e *ShortError) Error() string { return e.Err.Error() }

// Unwrap is the system's reason.
func (e *ShortError) Unwrap() error { return e.Err }

// Reserve reserves the blocks of an empty file of the given size, so that writing into it cannot run out of
// space. Where that is not possible, it sets the size, and others may take the space meanwhile. It looks at the
// free space first: a file system may hand out all that it has before it finds that too little. After a
// [*ShortError] the file is empty again.
func Reserve(f *os.File, size int64) error { return reserveWith(f, size, reserve) }

func reserveWith(f *os.File, size int64, reserve func(*os.File, int64) error) error {
	free, most := Free(f)
	if most > 0 && size > most { // 0 is also what file systems say that cannot tell: these are asked
		return &ShortError{size, free, unix.ENOSPC}
	}

	err := Retry(func() error { return reserve(f, size) })
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		return f.Truncate(size)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		if cut := f.Truncate(0); cut != nil {
			return errors.Join(&ShortError{size, free, err}, cut)
		}
		return &ShortError{size, free, err}
	}

	return err
}

// Free gives the bytes that a process without privileges may still write beside f, and those that this process
// may, which the superuser's reserve may add to; -1 where the file system does not tell.
func Free(f *os.File) (free, most int64) {
	var stat unix.Statfs_t
	if err := Retry(func() error { return unix.Fstatfs(int(f.Fd()), &stat) }); err != nil {
		return -1, -1
	}
	return space(&stat)
}

// space is [Free] of what a file system says of itself.
func space(stat *unix.Statfs_t) (free, most int64) {
	if stat.Blocks == 0 {
		return -1, -1
	}
	free, most = int64(stat.Bavail)*int64(stat.Bsize), int64(stat.Bavail)*int64(stat.Bsize)
	if os.Geteuid() == 0 {
		most = int64(stat.Bfree) * int64(stat.Bsize)
	}
	return free, most
}
