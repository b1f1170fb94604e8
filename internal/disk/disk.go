// Package disk reserves space for files.
package disk

import (
	"errors"
	"os"
	"syscall"

	"github.com/modelcompress/compress/internal/system"
)

// Check looks whether need bytes fit onto the file system of a folder, of which own bytes are taken by files
// that will be overwritten. It returns a [*ShortError] where they do not, and nil where the file system does
// not tell, or says 0, which some do that have room: those find out when the space is reserved.
func Check(dir string, need, own int64) error {
	free, most := Free(dir) // -1 of a folder that files can be made in, but that cannot be read
	return fits(need, own, free, most)
}

// Free is [system.Space] of a folder by its name.
func Free(dir string) (free, most int64) {
	f, err := os.Open(dir)
	if err != nil {
		return -1, -1
	}
	defer f.Close()
	return system.Space(f)
}

func fits(need, own, free, most int64) error {
	if free <= 0 || most <= 0 || need-own <= most {
		return nil
	}
	return &ShortError{need, free, syscall.ENOSPC}
}

// ShortError says that a file system has less room than a file needs. It wraps the system's reason, as
// [syscall.ENOSPC].
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
	free, most := system.Space(f)
	if most > 0 && size > most { // 0 is also what file systems say that cannot tell: these are asked
		return &ShortError{size, free, syscall.ENOSPC}
	}

	err := reserve(f, size)
	for errors.Is(err, syscall.EINTR) {
		err = reserve(f, size)
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return f.Truncate(size)
	case system.Full(err):
		if cut := f.Truncate(0); cut != nil {
			return errors.Join(&ShortError{size, free, err}, cut)
		}
		return &ShortError{size, free, err}
	}

	return err
}
