package safetensors

import (
	"os"

	"github.com/modelcompress/compress/internal/tensorfile"
)

// partialSuffix is what an unfinished file has behind its final name.
const partialSuffix = tensorfile.PartialSuffix

// Options says how a file is written. The zero value keeps the caller's order and refuses to replace a file.
type Options struct {
	Order     Order // of the tensors in the file; default OrderGiven
	Overwrite bool  // Finish may replace an existing file; default false
	// WriteAt writes tensors' bytes instead of [os.File.WriteAt], which nil means.
	WriteAt func(f *os.File, p []byte, off int64) (int, error)
}

// Sink is what a Writer and a DirWriter have in common. WriteTensor, WriteAt, MarkDone and Sync may be called from
// several goroutines at once.
type Sink interface {
	// WriteTensor writes a whole tensor.
	WriteTensor(name string, data []byte) error
	// WriteAt writes a part of a tensor.
	WriteAt(name string, p []byte, off int64) error
	// MarkDone says that a resumed output has a tensor already.
	MarkDone(name string) error
	// Sync makes durable what was written.
	Sync() error
	// Suspend ends writing and leaves the unfinished output to be resumed.
	Suspend() error
	// Finish gives the output its final name.
	Finish() error
	// Abort removes the unfinished output.
	Abort() error
}

var (
	_ Sink = (*Writer)(nil)
	_ Sink = (*DirWriter)(nil)
)

// Writer writes one file whose layout was fixed when it was made.
type Writer struct {
	layout *layout
	file   *tensorfile.Writer
}

// Create starts a file at path with the given tensors (Name, DType and Shape of each; a zero element count is fine)
// and metadata (nil or empty for none). It lays the file out, reserves its disk space and writes its header to
// path.partial in the same folder, which must exist; an older unfinished file of that name is discarded. Every tensor
// must be written before Finish.
//
// The errors wrap those of plan-time rules (ErrDuplicateKey, ErrReservedName, ErrHeaderNotUTF8,
// ErrHeaderTooLarge, ErrUnknownDType, ErrShapeOverflow, ErrNotByteAligned), ErrExists, ErrBusy, ErrNoSpace,
// ErrFileSize, or an error of the operating system; nothing is left behind then.
func Create(path string, tensors []Info, metadata map[string]string, opts Options) (*Writer, error) {
	w, err := newWriter(path, tensors, metadata, opts)
	if err != nil {
		return nil, err
	}
	if err := w.create(); err != nil {
		return nil, err
	}
	return w, nil
}

// Reopen continues a file that Create started with the same arguments and that Finish never reached, in this process
// or in one that was killed. It checks that path.partial has the very header and size that the arguments give. All
// tensors count as missing until they are written or MarkDone says they are there, which the caller knows from a
// journal kept behind Sync.
//
// If there is no path.partial but a finished file of the same layout, and Overwrite is not set, the Writer is
// complete at once: Done holds for every tensor and Finish does nothing. The errors are those of Create, ErrNoPartial
// and ErrLayoutChanged.
func Reopen(path string, tensors []Info, metadata map[string]string, opts Options) (*Writer, error) {
	w, err := newWriter(path, tensors, metadata, opts)
	if err != nil {
		return nil, err
	}
	if err := w.reopen(); err != nil {
		return nil, err
	}
	return w, nil
}

// newWriter lays a file out and touches nothing.
func newWriter(path string, tensors []Info, metadata map[string]string, opts Options) (*Writer, error) {
	l, err := plan(tensors, metadata, opts.Order)
	if err != nil {
		return nil, locate(err, path, "")
	}

	regions := make([]tensorfile.Region, len(l.tensors))
	for i, t := range l.tensors {
		regions[i] = tensorfile.Region{Name: t.Name, Offset: t.Offset, Size: t.Size}
	}

	file := tensorfile.New(path, &tensorfile.Layout{Head: l.head, Regions: regions, Size: l.size},
		tensorfile.Options{Overwrite: opts.Overwrite, WriteAt: opts.WriteAt})
	return &Writer{layout: l, file: file}, nil
}

func (w *Writer) create() error { return locate(w.file.Create(), w.Path(), "") }

func (w *Writer) reopen() error { return locate(w.file.Reopen(), w.Path(), "") }

// Path gives the final path.
func (w *Writer) Path() string { return w.file.Path() }

// Size gives the length in bytes of the whole file.
func (w *Writer) Size() int64 { return w.file.Size() }

// WriteTensor writes all bytes of a tensor. The errors are those of WriteAt, and one wrapping ErrSizeMismatch if data
// is not as long as the tensor.
func (w *Writer) WriteTensor(name string, data []byte) error {
	if r, ok := w.file.Region(name); ok && r.Size != int64(len(data)) {
		return locate(w.layout.mismatch(name, len(data)), w.Path(), name)
	}
	return w.WriteAt(name, data, 0)
}

// WriteAt writes a part of a tensor, off bytes into it. Parts may come in any order and from several goroutines;
// writing a byte twice is allowed, and the later value holds. The errors wrap ErrUnknownTensor, ErrRange, ErrClosed,
// ErrNoSpace, or an error of the operating system.
func (w *Writer) WriteAt(name string, p []byte, off int64) error {
	return locate(w.file.WriteAt(name, p, off), w.Path(), name)
}

// MarkDone says that a resumed file has all bytes of a tensor already. The errors wrap ErrUnknownTensor,
// ErrNotResumed if the file was started anew, or ErrClosed.
func (w *Writer) MarkDone(name string) error { return locate(w.file.MarkDone(name), w.Path(), name) }

// Finished reports whether the file has its final name, by Finish or because Reopen found it so.
func (w *Writer) Finished() bool { return w.file.Finished() }

// Done reports whether all bytes of a tensor are there; tensors without bytes always are.
func (w *Writer) Done(name string) bool { return w.file.Done(name) }

// Remaining lists the tensors that are not completely written, in the order of the file.
func (w *Writer) Remaining() []string { return w.file.Remaining() }

// Sync returns once everything written before is durable, so that a journal may name it; it costs nothing if nothing
// was written since the last one. After an error the file can only be aborted.
func (w *Writer) Sync() error { return locate(w.file.Sync(), w.Path(), "") }

// Suspend flushes and closes the unfinished file and leaves it for Reopen. A finished file stays as it is.
func (w *Writer) Suspend() error { return locate(w.file.Suspend(), w.Path(), "") }

// Finish checks that every tensor is complete, flushes the file, renames it to its final name and makes the name
// durable. With tensors missing, the error wraps ErrIncomplete and names them, and writing may go on. Other errors
// wrap ErrExists, if a file appeared there meanwhile, ErrClosed, or an error of the operating system. A second Finish
// does nothing.
func (w *Writer) Finish() error { return locate(w.file.Finish(), w.Path(), "") }

// Abort closes and removes the unfinished file. After Finish or Suspend it does nothing, so that it may be deferred.
func (w *Writer) Abort() error { return locate(w.file.Abort(), w.Path(), "") }
