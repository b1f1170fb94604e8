package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

func reserve(f *os.File, size int64) error { return unix.Fallocate(int(f.Fd()), 0, 0, size) }
