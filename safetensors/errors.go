package safetensors

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/tensorfile"
)

// Rules of the format: what a header can get wrong.
var (
	ErrHeaderTooShort = errors.New("file too short for a safetensors header")
	ErrHeaderTooLarge = errors.New("header larger than the format's limit of 100,000,000 bytes")
	ErrHeaderNotUTF8  = errors.New("header is not valid UTF-8")
	ErrHeaderStart    = errors.New("header does not start with '{'")
	ErrInvalidJSON    = errors.New("invalid JSON")
	ErrDuplicateKey   = errors.New("duplicate key")
	ErrEntry          = errors.New("malformed tensor entry")
	ErrUnknownDType   = errors.New("unknown dtype")
	ErrShapeOverflow  = errors.New("shape too large")
	ErrOffsets        = errors.New("invalid data_offsets")
	ErrSizeMismatch   = errors.New("size does not match dtype and shape")
	ErrNotByteAligned = errors.New("elements do not fill whole bytes")
	ErrOverlap        = errors.New("tensors overlap")
	ErrHole           = errors.New("hole between tensors")
	ErrTrailing       = errors.New("data beyond the last tensor")
	ErrTruncated      = tensorfile.ErrTruncated
	ErrMetadata       = errors.New("__metadata__ is not a map of strings")
)

// Faults of folders and their index. Faults inside the index file wrap ErrIndex together
// with the rule they break (ErrInvalidJSON, ErrDuplicateKey, …).
var (
	ErrIndex   = errors.New("invalid shard index")
	ErrNoModel = failure.New("no safetensors model in this folder",
		"give a folder that holds model.safetensors, or the shards and their index, or one GGUF model")
	ErrShardPath     = errors.New("shard lies outside the folder")
	ErrMissingShard  = failure.New("shard is missing", "fetch the missing file, or the whole folder again")
	ErrMissingTensor = errors.New("tensor of the index is not in its shard")
	ErrExtraTensor   = errors.New("tensor of a shard is not in the index")
	ErrNotRegular    = tensorfile.ErrNotRegular
)

// Faults of use, and of the machine.
var (
	ErrUnknownTensor = tensorfile.ErrUnknown
	ErrClosed        = tensorfile.ErrClosed
	ErrRange         = tensorfile.ErrRange
	ErrReservedName  = errors.New("reserved tensor name")
	ErrExists        = tensorfile.ErrExists
	ErrBusy          = tensorfile.ErrBusy
	ErrNoSpace       = tensorfile.ErrNoSpace
	ErrFileSize      = tensorfile.ErrFileSize
	ErrIncomplete    = tensorfile.ErrIncomplete
	ErrNoPartial     = tensorfile.ErrNoPartial
	ErrLayoutChanged = tensorfile.ErrLayoutChanged
	ErrNotResumed    = tensorfile.ErrNotResumed
	ErrShardPlan     = errors.New("invalid split into shards")
)

// Error is the type of this package's errors about a file: one line that names the file, the
// tensor and the offset where there is one, around a sentinel error above or an error of
// the operating system.
type Error struct {
	File   string // path as the caller gave it; "" for bytes in memory
	Tensor string // "" if the fault is not about one tensor
	Offset int64  // byte of the file where the fault lies, -1 if it has no place
	Detail string // what was expected and found; may be empty
	Err    error
}

// Error gives the line: file, tensor, offset, rule, detail.
func (e *Error) Error() string {
	var b strings.Builder
	if e.File == "" {
		b.WriteString("safetensors")
	} else {
		b.WriteString(e.File)
	}

	if e.Tensor != "" {
		fmt.Fprintf(&b, ": tensor %q", clip(e.Tensor))
	}
	if e.Offset >= 0 {
		fmt.Fprintf(&b, ": at byte %d", e.Offset)
	}

	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}

	return b.String()
}

// Unwrap gives the sentinel or system error inside.
func (e *Error) Unwrap() error { return e.Err }

// fault makes an Error without file or tensor, which locate adds on the way up.
func fault(err error, offset int64, format string, args ...any) *Error {
	return &Error{Offset: offset, Detail: fmt.Sprintf(format, args...), Err: err}
}

// locate fills in the file and the tensor of an Error that has none yet, and wraps any
// other error in one.
func locate(err error, file, tensor string) error {
	if err == nil {
		return nil
	}

	e, ok := err.(*Error)
	if !ok {
		e = &Error{Offset: -1, Err: err}
		if f, ok := err.(*tensorfile.Fault); ok {
			e = &Error{Tensor: f.Tensor, Offset: f.Offset, Detail: f.Detail, Err: f.Err}
		}
	}

	if e.File == "" {
		e.File = file
	}
	if e.Tensor == "" {
		e.Tensor = tensor
	}

	return e
}

// clip shortens a string from a file for a message.
func clip(s string) string {
	const limit = 120
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}

// clipShape shortens a shape from a file for a message.
func clipShape(shape []int64) string { return clip(fmt.Sprint(shape[:min(len(shape), 60)])) }

// clipNames lists names for a message: the first few, and how many more.
func clipNames(names []string) string {
	const limit = 5
	quoted := make([]string, 0, limit)
	for _, name := range names[:min(len(names), limit)] {
		quoted = append(quoted, strconv.Quote(clip(name)))
	}

	list := strings.Join(quoted, ", ")
	if len(names) > limit {
		list += fmt.Sprintf(" and %d more", len(names)-limit)
	}

	return list
}
