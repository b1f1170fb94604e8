package cli

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Lock makes a file and the folders above it, and keeps other processes from locking it until all that have it
// have closed it; a process that dies lets go of it. The error is [ErrBusy] where another holds it.
func Lock(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}

	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return nil, err
	}

	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil, errors.Join(ErrBusy, f.Close())
	}

	return f, nil
}
