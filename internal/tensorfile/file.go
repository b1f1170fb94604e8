package tensorfile

import (
	"errors"
	"io"
	"math"
	"os"
	"sync"
	"syscall"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/system"
)

// File is a file, or bytes in memory, of which regions are read. All methods but Close may be called from several
// goroutines at once. The caller keeps regions within the size.
type File struct {
	size int64

	mu     sync.RWMutex // held shared while data or file is in use
	data   []byte       // the whole file; nil once closed
	file   *os.File     // nil for bytes in memory
	closed bool
}

// Open opens a file for [Size] and [Map] without being held up by a pipe. Links are followed.
func Open(path string) (*os.File, error) {
	return system.OpenFile(path, os.O_RDONLY|system.NonBlock, 0)
}

// Size is the length in bytes of a regular file; others are refused.
func Size(f *os.File) (int64, error) {
	stat, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !stat.Mode().IsRegular() {
		return 0, fault(ErrNotRegular, -1, "%s", stat.Mode().Type())
	}
	return stat.Size(), nil
}

// Map maps a file that was opened without blocking, of the length that [Size] gave, and owns it from then on; after an
// error it is the caller's still. describe makes the error of a lost page at a byte of the mapping, for [mmapsafe.Do];
// it is called from any goroutine.
func Map(f *os.File, size int64, describe func(at int64, err error) error) (*File, error) {
	if size > math.MaxInt {
		return nil, fault(ErrTooLarge, -1, "%d bytes", size)
	}

	m := &File{size: size, file: f, data: []byte{}}
	if size == 0 { // which the system refuses to map
		return m, nil
	}

	data, err := system.Map(f, int(size))
	if err != nil {
		return nil, fault(err, -1, "mapping %d bytes", size)
	}

	m.data = data
	mmapsafe.Add(data, func(at int64) error { return describe(at, m.lost(at)) })
	return m, nil
}

// Memory is a whole file in memory. The views are parts of b, which must not change while they are used.
func Memory(b []byte) *File { return &File{size: int64(len(b)), data: b[:len(b):len(b)]} }

// Size is the length of the whole file in bytes.
func (f *File) Size() int64 { return f.size }

// Bytes returns a read-only view of a region, valid until Close. Writing to it ends the program.
func (f *File) Bytes(r Region) ([]byte, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()

	if f.closed {
		return nil, f.gone()
	}

	end := r.Offset + r.Size
	return f.data[r.Offset:end:end], nil
}

func (f *File) gone() error { return fault(ErrClosed, -1, "the file may not be read any more") }

// ReadAt copies a part of a region, off bytes into it, through pread: no page of the mapping is touched, so resident
// memory does not grow. As with io.ReaderAt, fewer bytes come with io.EOF if the region ends.
func (f *File) ReadAt(r Region, p []byte, off int64) (int, error) {
	if off < 0 || off > r.Size {
		return 0, fault(ErrRange, -1, "offset %d, size %d", off, r.Size)
	}

	f.mu.RLock()
	defer f.mu.RUnlock()

	if f.closed {
		return 0, f.gone()
	}

	want := p[:min(int64(len(p)), r.Size-off)]
	at := r.Offset + off

	n, err := f.pread(want, at)
	if err != nil {
		return n, readFault(err, at+int64(n))
	}
	if n < len(p) {
		return n, io.EOF
	}

	return n, nil
}

func (f *File) pread(p []byte, at int64) (int, error) {
	if f.file == nil {
		return copy(p, f.data[at:]), nil
	}
	if len(p) == 0 {
		return 0, nil
	}
	return f.file.ReadAt(p, at)
}

// ReadFull reads len(p) bytes of a file through pread. A file that has become too short for them is one that was
// truncated meanwhile.
func ReadFull(f *os.File, p []byte, at int64) error {
	if n, err := f.ReadAt(p, at); n < len(p) {
		return readFault(err, at)
	}
	return nil
}

func readFault(err error, at int64) error {
	if errors.Is(err, io.EOF) {
		return shorter(at)
	}
	return fault(err, at, "reading")
}

func shorter(at int64) error { return fault(ErrTruncated, at, "it became shorter while it was read") }

// faultAround is how far from the page that was touched the system may map others, which have to be given back with
// it. Where those belong to a neighbour in use, they come back when touched.
const faultAround = 64 << 10

// Release gives back the memory behind the view of a region, which stays valid: reading it again fetches the pages
// anew. It does nothing for bytes in memory.
func (f *File) Release(r Region) error {
	f.mu.RLock()
	defer f.mu.RUnlock()

	if f.closed {
		return f.gone()
	}
	if f.file == nil || r.Size == 0 {
		return nil
	}

	page := int64(os.Getpagesize())
	begin := max(0, r.Offset-faultAround) / page * page
	end := min(f.size, r.Offset+r.Size+faultAround)
	if err := system.Drop(f.data[begin:end]); err != nil {
		return fault(err, r.Offset, "madvise")
	}

	return nil
}

// View calls fn with a region's data. If the file was shortened meanwhile, so that a page is gone, fn is left at the
// access, and View returns the error that describe made; that holds for accesses of fn's own goroutine.
func (f *File) View(r Region, fn func(data []byte) error) error {
	data, err := f.Bytes(r)
	if err != nil {
		return err
	}
	if f.file == nil || len(data) == 0 {
		return fn(data)
	}
	return mmapsafe.Do(func() error { return fn(data) })
}

// lost is the fault of a page that cannot be read.
func (f *File) lost(at int64) error {
	if f.shortened() {
		return shorter(at)
	}
	return fault(syscall.EIO, at, "reading")
}

// shortened reports whether pages of the mapping are gone. Where the file was closed meanwhile, nobody can tell any
// more, and the loss is the likelier reason.
func (f *File) shortened() bool {
	stat, err := f.file.Stat()
	return err != nil || stat.Size() < f.size
}

// Close unmaps the file. Touching a view afterwards ends the program. A second Close does nothing.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.closed {
		return nil
	}

	data := f.data
	f.data = nil
	f.closed = true

	switch {
	case f.file == nil:
		return nil
	case len(data) == 0:
		return f.file.Close()
	}

	mmapsafe.Remove(data, f.shortened())
	return errors.Join(system.Unmap(data), f.file.Close())
}
