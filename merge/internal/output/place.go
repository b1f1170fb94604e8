package output

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/internal/failure"
)

// Ways in which a caller can ask for what makes no sense.
var (
	ErrOption  = failure.Misuse("option out of range", "")
	ErrInPlace = failure.Misuse("output is the folder of an input", "")
)

// Stage is the hidden folder that becomes the output. What is put there in folders of their own stays, and is
// published with the rest.
func (f *Folder) Stage() string { return f.stage }

// Resumable tells whether it makes sense to continue later with the same inputs.
func Resumable(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT, unix.EFBIG, unix.EIO, unix.EROFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Same tells whether two paths are one folder.
func Same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
