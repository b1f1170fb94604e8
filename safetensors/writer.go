package safetensors

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"github.com/modelcompress/compress/internal/disk"
)

// partialSuffix is what an unfinished file has behind its final name.
const partialSuffix = ".partial"

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
	path      string
	overwrite bool
	resumed   bool // by Reopen, so that tensors may be there already
	writeAt   func(f *os.File, p []byte, off int64) (int, error)
	layout    *layout
	slots     []slot
	byName    map[string]int

	mu       sync.RWMutex // held shared while file is in use
	file     *os.File     // nil once finished, suspended or aborted
	finished bool
	failed   error // a flush that failed, so that what is on the disk is unknown; also under syncing

	syncing sync.Mutex  // held while Sync flushes, so that one Sync does not return before another
	unsaved atomic.Bool // written to since the last Sync
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
		return nil, locate(err, path, "")
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
		return nil, locate(err, path, "")
	}
	return w, nil
}

func newWriter(path string, tensors []Info, metadata map[string]string, opts Options) (*Writer, error) {
	l, err := plan(tensors, metadata, opts.Order)
	if err != nil {
		return nil, locate(err, path, "")
	}

	w := &Writer{path: path, overwrite: opts.Overwrite, layout: l, writeAt: opts.WriteAt}
	if w.writeAt == nil {
		w.writeAt = (*os.File).WriteAt
	}

	w.slots = make([]slot, len(l.tensors))
	w.byName = make(map[string]int, len(l.tensors))
	for i, t := range l.tensors {
		w.slots[i].info = t
		w.byName[t.Name] = i
	}

	return w, nil
}

// checkFree refuses to write where a file stands already, unless it may be replaced.
func (w *Writer) checkFree() error {
	if w.overwrite {
		return nil
	}

	_, err := os.Lstat(w.path)
	switch {
	case err == nil:
		return ErrExists
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}

	return err
}

func (w *Writer) create() error {
	if err := w.checkFree(); err != nil {
		return err
	}

	f, err := openPartial(w.path+partialSuffix, os.O_CREATE)
	if err != nil {
		return err
	}

	w.file = f
	if err := w.start(); err != nil {
		return errors.Join(err, w.Abort())
	}

	return nil
}

// start empties the file, reserves its space and writes what precedes the data.
func (w *Writer) start() error {
	if err := w.file.Truncate(0); err != nil {
		return err
	}
	if err := disk.Reserve(w.file, w.layout.size); err != nil {
		return diskError(err, w.file, w.layout.size)
	}
	w.unsaved.Store(true)
	_, err := w.file.WriteAt(w.layout.head, 0)
	return diskError(err, w.file, w.layout.size)
}

func (w *Writer) reopen() error {
	f, err := openPartial(w.path+partialSuffix, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return w.adopt()
	}

	if err != nil {
		return err
	}

	w.file = f
	err = w.checkFree()
	if err == nil {
		err = w.resume()
	}
	if err != nil {
		w.file = nil
		_ = f.Close()
	}

	return err
}

// resume compares the unfinished file with the layout. One whose header breaks off, so that zeros follow, comes
// from a Create that was cut short, and starts anew.
func (w *Writer) resume() error {
	head := make([]byte, len(w.layout.head))
	n, _ := w.file.ReadAt(head, 0)
	if written := bytes.TrimRight(head[:n], "\x00"); len(written) < len(head) &&
		bytes.HasPrefix(w.layout.head, written) {
		return w.start()
	}
	w.resumed = true
	return sameLayout(w.file, w.layout)
}

// adopt takes a finished file for a resumed one, if it has the layout.
func (w *Writer) adopt() error {
	f, err := os.Open(w.path)
	if w.overwrite || errors.Is(err, fs.ErrNotExist) {
		return fault(ErrNoPartial, -1, "there is no %s%s", w.path, partialSuffix)
	}

	if err != nil {
		return err
	}
	defer f.Close()

	if err := sameLayout(f, w.layout); err != nil {
		return err
	}

	w.resumed, w.finished = true, true
	for i := range w.slots {
		w.slots[i].add(0, w.slots[i].info.Size)
	}

	return nil
}

// sameLayout reports whether f has the layout's size and all bytes before the data.
func sameLayout(f *os.File, l *layout) error {
	stat, err := f.Stat()
	if err != nil {
		return err
	}

	if stat.Size() != l.size {
		return fault(ErrLayoutChanged, -1, "it has %d bytes, not %d; remove it to start over", stat.Size(), l.size)
	}

	head := make([]byte, len(l.head))
	if _, err := f.ReadAt(head, 0); err != nil {
		return readError(err, 0)
	}
	if !bytes.Equal(head, l.head) {
		return fault(ErrLayoutChanged, -1, "its header names other tensors; remove it to start over")
	}

	return nil
}

// Path gives the final path.
func (w *Writer) Path() string { return w.path }

// Size gives the length in bytes of the whole file.
func (w *Writer) Size() int64 { return w.layout.size }

// find looks a tensor up.
func (w *Writer) find(name string) (*slot, error) {
	i, ok := w.byName[name]
	if !ok {
		return nil, locate(ErrUnknownTensor, w.path, name)
	}
	return &w.slots[i], nil
}

// WriteTensor writes all bytes of a tensor. The errors are those of WriteAt, and one wrapping ErrSizeMismatch if data
// is not as long as the tensor.
func (w *Writer) WriteTensor(name string, data []byte) error {
	s, err := w.find(name)
	if err != nil {
		return err
	}
	if int64(len(data)) != s.info.Size {
		return locate(fault(ErrSizeMismatch, -1, "%s %v takes %d bytes, given %d",
			s.info.DType, clipShape(s.info.Shape), s.info.Size, len(data)), w.path, name)
	}
	return w.write(s, data, 0)
}

// WriteAt writes a part of a tensor, off bytes into it. Parts may come in any order and from several goroutines;
// writing a byte twice is allowed, and the later value holds. The errors wrap ErrUnknownTensor, ErrRange, ErrClosed,
// ErrNoSpace, or an error of the operating system.
func (w *Writer) WriteAt(name string, p []byte, off int64) error {
	s, err := w.find(name)
	if err != nil {
		return err
	}
	if off < 0 || off > s.info.Size-int64(len(p)) {
		return locate(fault(ErrRange, -1, "%d bytes at offset %d, size %d", len(p), off, s.info.Size), w.path, name)
	}
	return w.write(s, p, off)
}

func (w *Writer) write(s *slot, p []byte, off int64) error {
	w.mu.RLock()
	defer w.mu.RUnlock()

	if w.file == nil {
		return locate(fault(ErrClosed, -1, "the file may not be written any more"), w.path, s.info.Name)
	}
	if len(p) == 0 {
		return nil
	}

	n, err := w.writeAt(w.file, p, s.info.Offset+off)
	if err != nil {
		err = diskError(err, w.file, int64(len(p)-n))
		return locate(err, w.path, s.info.Name)
	}

	w.unsaved.Store(true)
	s.add(off, off+int64(len(p)))
	return nil
}

// MarkDone says that a resumed file has all bytes of a tensor already. The errors wrap ErrUnknownTensor,
// ErrNotResumed if the file was started anew, or ErrClosed.
func (w *Writer) MarkDone(name string) error {
	s, err := w.find(name)
	if err != nil {
		return err
	}

	w.mu.RLock()
	defer w.mu.RUnlock()

	switch {
	case w.finished:
		return nil
	case w.file == nil:
		return locate(fault(ErrClosed, -1, "the file may not be written any more"), w.path, name)
	case !w.resumed:
		return locate(fault(ErrNotResumed, -1, "this one was started anew"), w.path, name)
	}

	s.add(0, s.info.Size)
	return nil
}

// Done reports whether all bytes of a tensor are there; tensors without bytes always are.
func (w *Writer) Done(name string) bool {
	i, ok := w.byName[name]
	return ok && w.slots[i].done()
}

// Remaining lists the tensors that are not completely written, in the order of the file.
func (w *Writer) Remaining() []string {
	var names []string
	for i := range w.slots {
		if !w.slots[i].done() {
			names = append(names, w.slots[i].info.Name)
		}
	}
	return names
}

// Sync returns once everything written before is durable, so that a journal may name it; it costs nothing if nothing
// was written since the last one. After an error the file can only be aborted.
func (w *Writer) Sync() error {
	w.syncing.Lock()
	defer w.syncing.Unlock()

	w.mu.RLock()
	defer w.mu.RUnlock()

	switch {
	case w.finished:
		return nil
	case w.file == nil:
		return locate(fault(ErrClosed, -1, "nothing to flush"), w.path, "")
	case w.failed != nil:
		return locate(fault(w.failed, -1, "an earlier flush failed"), w.path, "")
	case !w.unsaved.Swap(false):
		return nil
	}

	if err := errors.Join(w.file.Sync(), syncDir(w.path)); err != nil {
		w.failed = err
		return locate(fault(err, -1, "flushing"), w.path, "")
	}

	return nil
}

// Suspend flushes and closes the unfinished file and leaves it for Reopen. A finished file stays as it is.
func (w *Writer) Suspend() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	err := errors.Join(w.file.Sync(), syncDir(w.path), w.file.Close())
	w.file = nil
	return locate(err, w.path, "")
}

// Finish checks that every tensor is complete, flushes the file, renames it to its final name and makes the name
// durable. With tensors missing, the error wraps ErrIncomplete and names them, and writing may go on. Other errors
// wrap ErrExists, if a file appeared there meanwhile, ErrClosed, or an error of the operating system. A second Finish
// does nothing.
func (w *Writer) Finish() error {
	if err := w.complete(); err != nil {
		return err
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if w.finished {
		return nil
	}
	if w.file == nil {
		return locate(fault(ErrClosed, -1, "it was aborted or suspended"), w.path, "")
	}

	return locate(w.publish(), w.path, "")
}

// complete names the tensors that are missing.
func (w *Writer) complete() error {
	missing := w.Remaining()
	if len(missing) == 0 {
		return nil
	}
	return locate(fault(ErrIncomplete, -1, "%d of %d: %s", len(missing), len(w.slots), clipNames(missing)), w.path,
		missing[0])
}

// publish flushes and renames. Once renamed, the file counts as finished whatever follows.
func (w *Writer) publish() error {
	if w.failed != nil {
		return fault(w.failed, -1, "an earlier flush failed")
	}
	if w.failed = w.file.Sync(); w.failed != nil {
		return fault(w.failed, -1, "flushing")
	}
	if err := w.checkFree(); err != nil { // a file may have appeared since Create looked
		return err
	}
	if err := os.Rename(w.path+partialSuffix, w.path); err != nil {
		return err
	}

	w.finished = true
	err := errors.Join(w.file.Close(), syncDir(w.path))
	w.file = nil

	return err
}

// Abort closes and removes the unfinished file. After Finish or Suspend it does nothing, so that it may be deferred.
func (w *Writer) Abort() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	err := errors.Join(os.Remove(w.path+partialSuffix), w.file.Close())
	w.file = nil
	return locate(err, w.path, "")
}
