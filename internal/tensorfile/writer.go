package tensorfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcompress/compress/internal/disk"
	"github.com/modelcompress/compress/internal/system"
)

// PartialSuffix is what an unfinished file has behind its final name.
const PartialSuffix = ".partial"

// Layout is a new file worked out: all bytes before the data, and the place of each tensor. What lies between them is
// zeros.
type Layout struct {
	Head    []byte
	Regions []Region // with names that differ, beside each other
	Size    int64    // of the whole file
}

// Writer writes one file whose layout was fixed when it was made. Its errors are a [*Fault] around one of this
// package's, or one of the operating system.
type Writer struct {
	path      string
	overwrite bool
	resumed   bool // by Reopen, so that tensors may be there already
	writeAt   func(f *os.File, p []byte, off int64) (int, error)
	layout    *Layout
	slots     []slot
	byName    map[string]int

	mu       sync.RWMutex // held shared while file is in use
	file     *os.File     // nil once finished, suspended or aborted
	finished bool
	failed   error // a flush that failed, so that what is on the disk is unknown; also under syncing

	syncing sync.Mutex  // held while Sync flushes, so that one Sync does not return before another
	unsaved atomic.Bool // written to since the last Sync
}

// Options says how a file is written.
type Options struct {
	Overwrite bool // Finish may replace an existing file
	// WriteAt writes tensors' bytes instead of [os.File.WriteAt], which nil means.
	WriteAt func(f *os.File, p []byte, off int64) (int, error)
}

// New makes a Writer, which touches nothing before Create or Reopen.
func New(path string, l *Layout, opts Options) *Writer {
	w := &Writer{path: path, overwrite: opts.Overwrite, layout: l, writeAt: opts.WriteAt}
	if w.writeAt == nil {
		w.writeAt = (*os.File).WriteAt
	}

	w.slots = make([]slot, len(l.Regions))
	w.byName = make(map[string]int, len(l.Regions))
	for i, r := range l.Regions {
		w.slots[i].Region = r
		w.byName[r.Name] = i
	}

	return w
}

// Create starts the file: it reserves its disk space and writes the head to path.partial in the same folder, which must
// exist; an older unfinished file of that name is discarded. After an error nothing is left behind.
func (w *Writer) Create() error {
	if err := w.checkFree(); err != nil {
		return err
	}

	f, err := openPartial(w.path+PartialSuffix, os.O_CREATE)
	if err != nil {
		return err
	}

	w.file = f
	err = w.start()
	if err == nil {
		return nil
	}
	if left := w.Abort(); left != nil {
		return errors.Join(err, left)
	}
	return err
}

// Reopen continues a file that Create started with the same layout and that Finish never reached, in this process or
// in one that was killed. All tensors count as missing until they are written or MarkDone says they are there.
//
// If there is no unfinished file but a finished one of the same layout, and Overwrite is not set, the Writer is
// complete at once.
func (w *Writer) Reopen() error {
	f, err := openPartial(w.path+PartialSuffix, 0)
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

// start empties the file, reserves its space and writes what precedes the data.
func (w *Writer) start() error {
	if err := w.file.Truncate(0); err != nil {
		return err
	}
	if err := disk.Reserve(w.file, w.layout.Size); err != nil {
		return diskFault(err, w.file, w.layout.Size)
	}
	w.unsaved.Store(true)
	_, err := w.file.WriteAt(w.layout.Head, 0)
	return diskFault(err, w.file, w.layout.Size)
}

// resume compares the unfinished file with the layout. One whose head breaks off, so that zeros follow, comes from a
// Create that was cut short, and starts anew.
func (w *Writer) resume() error {
	head := make([]byte, len(w.layout.Head))
	n, _ := w.file.ReadAt(head, 0)
	if written := bytes.TrimRight(head[:n], "\x00"); len(written) < len(bytes.TrimRight(w.layout.Head, "\x00")) &&
		bytes.HasPrefix(w.layout.Head, written) {
		return w.start()
	}
	w.resumed = true
	return sameLayout(w.file, w.layout)
}

// adopt takes a finished file for a resumed one, if it has the layout.
func (w *Writer) adopt() error {
	noPartial := fault(ErrNoPartial, -1, "there is no %s%s", w.path, PartialSuffix)
	if w.overwrite {
		return noPartial
	}

	f, err := os.Open(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return noPartial
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
		w.slots[i].add(0, w.slots[i].Size)
	}

	return nil
}

// sameLayout checks that f has the layout's size and all bytes before the data.
func sameLayout(f *os.File, l *Layout) error {
	stat, err := f.Stat()
	if err != nil {
		return err
	}

	if stat.Size() != l.Size {
		return fault(ErrLayoutChanged, -1, "it has %d bytes, not %d; remove it to start over", stat.Size(), l.Size)
	}

	head := make([]byte, len(l.Head))
	if err := ReadFull(f, head, 0); err != nil {
		return err
	}
	if !bytes.Equal(head, l.Head) {
		return fault(ErrLayoutChanged, -1, "its header names other tensors; remove it to start over")
	}

	return nil
}

// Path is the final path.
func (w *Writer) Path() string { return w.path }

// Size is the length in bytes of the whole file.
func (w *Writer) Size() int64 { return w.layout.Size }

// Finished reports whether the file has its final name.
func (w *Writer) Finished() bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.finished
}

// Region is where a tensor lies; false for an unknown one.
func (w *Writer) Region(name string) (Region, bool) {
	i, ok := w.byName[name]
	if !ok {
		return Region{}, false
	}
	return w.slots[i].Region, true
}

// find looks a tensor up for the methods that write it.
func (w *Writer) find(name string) (*slot, error) {
	i, ok := w.byName[name]
	if !ok {
		return nil, ErrUnknown
	}
	return &w.slots[i], nil
}

// WriteAt writes a part of a tensor, off bytes into it. Parts may come in any order and from several goroutines;
// writing a byte twice is allowed, and the later value holds.
func (w *Writer) WriteAt(name string, p []byte, off int64) error {
	s, err := w.find(name)
	if err != nil {
		return err
	}
	if off < 0 || off > s.Size-int64(len(p)) {
		return fault(ErrRange, -1, "%d bytes at offset %d, size %d", len(p), off, s.Size)
	}
	return w.write(s, p, off)
}

func (w *Writer) write(s *slot, p []byte, off int64) error {
	w.mu.RLock()
	defer w.mu.RUnlock()

	if w.file == nil {
		return closedForWriting()
	}
	if len(p) == 0 {
		return nil
	}

	n, err := w.writeAt(w.file, p, s.Offset+off)
	if err != nil {
		return diskFault(err, w.file, int64(len(p)-n))
	}

	w.unsaved.Store(true)
	s.add(off, off+int64(len(p)))
	return nil
}

func closedForWriting() error { return fault(ErrClosed, -1, "the file may not be written any more") }

// MarkDone says that a resumed file has all bytes of a tensor already.
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
		return closedForWriting()
	case !w.resumed:
		return fault(ErrNotResumed, -1, "this one was started anew")
	}

	s.add(0, s.Size)
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
			names = append(names, w.slots[i].Name)
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
		return fault(ErrClosed, -1, "nothing to flush")
	case w.failed != nil:
		return fault(w.failed, -1, "an earlier flush failed")
	case !w.unsaved.Swap(false):
		return nil
	}

	if err := errors.Join(w.file.Sync(), syncDir(w.path)); err != nil {
		w.failed = err
		return fault(err, -1, "flushing")
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
	return err
}

// Finish checks that every tensor is complete, flushes the file, renames it to its final name and makes the name
// durable. With tensors missing, the error wraps ErrIncomplete, and writing may go on. A second Finish does nothing.
func (w *Writer) Finish() error {
	if err := w.Complete(); err != nil {
		return err
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if w.finished {
		return nil
	}
	if w.file == nil {
		return fault(ErrClosed, -1, "it was aborted or suspended")
	}

	return w.publish()
}

// Complete names the tensors that are missing, in an error that wraps ErrIncomplete.
func (w *Writer) Complete() error {
	missing := w.Remaining()
	if len(missing) == 0 {
		return nil
	}
	f := fault(ErrIncomplete, -1, "%d of %d: %s", len(missing), len(w.slots), clipNames(missing))
	f.Tensor = missing[0]
	return f
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
	if err := system.Rename(w.path+PartialSuffix, w.path); err != nil {
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
	err := errors.Join(os.Remove(w.path+PartialSuffix), w.file.Close())
	w.file = nil
	return err
}

// clipNames lists names for a message: the first few, and how many more.
func clipNames(names []string) string {
	const limit = 5
	const length = 120
	quoted := make([]string, 0, limit)
	for _, name := range names[:min(len(names), limit)] {
		if len(name) > length {
			name = name[:length] + "…"
		}
		quoted = append(quoted, strconv.Quote(name))
	}

	list := strings.Join(quoted, ", ")
	if len(names) > limit {
		list += fmt.Sprintf(" and %d more", len(names)-limit)
	}

	return list
}
