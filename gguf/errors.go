package gguf

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/internal/tensorfile"
)

// Rules of the format: what a file can get wrong.
var (
	ErrMagic         = errors.New("not a GGUF file")
	ErrVersion       = failure.New("unknown version of GGUF", "convert the model with a current llama.cpp")
	ErrBigEndian     = errors.New("GGUF file for big-endian machines")
	ErrTruncated     = tensorfile.ErrTruncated
	ErrKey           = errors.New("malformed key")
	ErrDuplicateKey  = errors.New("duplicate key")
	ErrValue         = errors.New("malformed value")
	ErrUnknownKind   = errors.New("unknown type of value")
	ErrNestedArray   = errors.New("array of arrays")
	ErrAlignment     = errors.New("invalid general.alignment")
	ErrTensorName    = errors.New("malformed tensor name")
	ErrDuplicate     = errors.New("duplicate tensor")
	ErrDimensions    = errors.New("too many dimensions")
	ErrShapeOverflow = errors.New("shape too large")
	ErrRowSize       = errors.New("rows are no whole number of blocks")
	ErrUnknownType   = errors.New("unknown tensor type")
	ErrOffset        = errors.New("invalid tensor offset")
	ErrOverlap       = errors.New("tensors overlap")
	ErrQuantVersion  = failure.New("unknown general.quantization_version",
		"convert the model again with a current llama.cpp")
)

// Faults of split files.
var (
	ErrSplit       = errors.New("invalid split")
	ErrMissingPart = failure.New("part of a split file is missing", "fetch the missing file into the same folder")
)

// Faults of values. They are also those of other quantised formats.
var (
	ErrNotDecodable = quantized.ErrNotDecodable
	ErrNotFinite    = quantized.ErrNotFinite
)

// Faults of use, and of the machine.
var (
	ErrUnknownTensor = tensorfile.ErrUnknown
	ErrNotRegular    = tensorfile.ErrNotRegular
	ErrTooLarge      = tensorfile.ErrTooLarge
	ErrClosed        = tensorfile.ErrClosed
	ErrRange         = tensorfile.ErrRange
	ErrSizeMismatch  = errors.New("size does not match type and shape")
	ErrExists        = tensorfile.ErrExists
	ErrBusy          = tensorfile.ErrBusy
	ErrNoSpace       = tensorfile.ErrNoSpace
	ErrFileSize      = tensorfile.ErrFileSize
	ErrIncomplete    = tensorfile.ErrIncomplete
	ErrNoPartial     = tensorfile.ErrNoPartial
	ErrLayoutChanged = tensorfile.ErrLayoutChanged
	ErrNotResumed    = tensorfile.ErrNotResumed
)

// Error is the type of this package's errors about a file: one line that names the file, the tensor or the key, and
// the offset where there is one, around a sentinel error above or an error of the operating system.
type Error struct {
	File   string // path as the caller gave it; "" for bytes in memory
	Tensor string // "" if the fault is not about one tensor
	Key    string // "" if the fault is not about one pair of the metadata
	Offset int64  // byte of the file where the fault lies, -1 if it has no place
	Detail string // what was expected and found; may be empty
	Err    error
}

// Error gives the line: file, tensor or key, offset, rule, detail.
func (e *Error) Error() string {
	var b strings.Builder
	if e.File == "" {
		b.WriteString("gguf")
	} else {
		b.WriteString(e.File)
	}

	if e.Tensor != "" {
		fmt.Fprintf(&b, ": tensor %q", clip(e.Tensor))
	}
	if e.Key != "" {
		fmt.Fprintf(&b, ": key %q", clip(e.Key))
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

// fault makes an Error without a file, which locate adds on the way up.
func fault(err error, offset int64, format string, args ...any) *Error {
	return &Error{Offset: offset, Detail: fmt.Sprintf(format, args...), Err: err}
}

// locate fills in the file and the tensor of an Error that has none yet, and wraps any other error in one.
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
