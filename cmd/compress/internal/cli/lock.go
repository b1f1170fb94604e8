package cli

import (
	"os"

	"github.com/modelcompress/compress/internal/stage"
)

// ErrBusy: another process holds a lock.
var ErrBusy = stage.ErrBusy

// Lock makes a file and the folders above it, and keeps other processes from locking it until all that have it
// have closed it; a process that dies lets go of it. The error wraps [ErrBusy] where another holds it.
func Lock(path string) (*os.File, error) { return stage.LockFile(path) }
