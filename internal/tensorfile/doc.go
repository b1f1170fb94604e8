// Package tensorfile is what formats of weights share that begin with a header and go on with the bytes of tensors:
// such a file mapped for reading, and such a file written under a temporary name until it is whole. What the header
// says is the format's business; here a tensor is a name and a range of bytes. The packages safetensors and gguf stand
// on it.
//
// A format puts its own type of error around a [*Fault], which says where in the file and what, but not which file, and
// the tensor only where the caller did not name it.
package tensorfile

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/internal/failure"
)

// Faults of files, of use, and of the machine, whatever the format.
var (
	ErrNotRegular = errors.New("not a regular file")
	ErrTruncated  = failure.New("file is truncated",
		"the download or copy may be incomplete: fetch the file again")
	ErrClosed   = errors.New("already closed")
	ErrRange    = errors.New("outside the tensor")
	ErrUnknown  = errors.New("no such tensor")
	ErrTooLarge = errors.New("file too large for this machine")
	ErrExists   = failure.Misuse("output already exists", "choose another --out, or pass --overwrite")
	ErrBusy     = errors.New("another writer holds this output")
	ErrNoSpace  = failure.New("not enough disk space", failure.NoSpace)
	ErrFileSize = failure.New("file larger than is allowed here",
		"raise the limit on file sizes (ulimit -f), or use another file system")
	ErrIncomplete    = errors.New("tensors not completely written")
	ErrNoPartial     = errors.New("nothing to resume")
	ErrLayoutChanged = errors.New("unfinished output has another layout")
	ErrNotResumed    = errors.New("only a resumed output can have finished tensors")
)

// Region is where a tensor lies in its file.
type Region struct {
	Name         string
	Offset, Size int64 // bytes
}

// Fault is an error of this package: one of those above or of the operating system, with its place.
type Fault struct {
	Tensor string // "" if the caller knows it, or if the fault is not about one
	Offset int64  // byte of the file, -1 if the fault has no place
	Detail string // what was expected and found; may be empty
	Err    error
}

// Error implements error.
func (f *Fault) Error() string {
	if f.Detail == "" {
		return f.Err.Error()
	}
	return fmt.Sprintf("%v: %s", f.Err, f.Detail)
}

// Unwrap is the error inside.
func (f *Fault) Unwrap() error { return f.Err }

func fault(err error, offset int64, format string, args ...any) *Fault {
	return &Fault{Offset: offset, Detail: fmt.Sprintf(format, args...), Err: err}
}
