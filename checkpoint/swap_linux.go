package checkpoint

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// swap gives the folder dir the name final in one step; what was there before has the name dir afterwards.
func swap(dir, final string) error {
	err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, final, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return os.Rename(dir, final)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return swapByTwo(dir, final) // a file system that can't exchange names
	}

	return &os.LinkError{Op: "rename", Old: dir, New: final, Err: err}
}
