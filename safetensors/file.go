package safetensors

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/internal/mmapsafe"
)

// maxFileSize is the largest file that can be mapped and indexed by an int.
const maxFileSize = math.MaxInt

// Source is what a File and a Dir have in common. All methods but Close may be called from several goroutines at
// once.
type Source interface {
	// Names lists the tensors in the order of their data.
	Names() []string
	// Info says what a tensor is; false if there is none of that name.
	Info(name string) (Info, bool)
	// Metadata gives the free-form strings of the header.
	Metadata() map[string]string
	// Bytes gives a read-only view of a tensor, valid until Close.
	Bytes(name string) ([]byte, error)
	// ReadAt copies a part of a tensor.
	ReadAt(name string, p []byte, off int64) (int, error)
	// Release gives back the memory behind a view; the view stays valid.
	Release(name string) error
	// Close ends all views.
	Close() error
}

var (
	_ Source = (*File)(nil)
	_ Source = (*Dir)(nil)
)

// File is one open safetensors file. All methods but Close may be called from several goroutines at once.
type File struct {
	path   string
	header *header
	size   int64

	mu     sync.RWMutex // held shared while data or file is in use
	data   []byte       // the whole file; nil once closed
	file   *os.File     // nil for bytes in memory
	mapped bool
}

// Open checks the header of the file at path against its size and maps the file, read-only. Symbolic links are
// followed. It returns an *Error around one of the rules of the format, ErrNotRegular, or an error of the operating
// system.
func Open(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return openFile(f, path)
}

// openFile takes over f, which was opened without blocking so that a pipe cannot hold us up.
func openFile(f *os.File, path string) (*File, error) {
	sf, err := mapFile(f, path)
	if err != nil {
		_ = f.Close()
		return nil, locate(err, path, "")
	}
	return sf, nil
}

func mapFile(f *os.File, path string) (*File, error) {
	stat, err := f.Stat()
	if err != nil {
		return nil, err
	}

	if !stat.Mode().IsRegular() {
		return nil, fault(ErrNotRegular, -1, "%s", stat.Mode().Type())
	}

	size := stat.Size()
	h, err := readHeader(f, size)
	if err != nil {
		return nil, err
	}

	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fault(err, -1, "mapping %d bytes", size)
	}

	sf := &File{path: path, header: h, size: size, data: data, file: f, mapped: true}
	mmapsafe.Add(data, sf.lost)
	return sf, nil
}

// readHeader reads the header through pread, so that a file that shrinks meanwhile gives an error, and checks it.
func readHeader(f *os.File, size int64) (*header, error) {
	if size > maxFileSize {
		return nil, fault(ErrOffsets, -1, "%d bytes are too many for this machine", size)
	}

	prefix := make([]byte, min(prefixSize, size))
	if _, err := f.ReadAt(prefix, 0); err != nil {
		return nil, readError(err, 0)
	}

	n, err := headerSize(prefix, size)
	if err != nil {
		return nil, err
	}

	text := make([]byte, n)
	if _, err := f.ReadAt(text, prefixSize); err != nil {
		return nil, readError(err, prefixSize)
	}

	return parseHeader(text, size)
}

// readError says that a file became shorter, or gives the error as it is.
func readError(err error, at int64) error {
	if errors.Is(err, io.EOF) {
		return fault(ErrTruncated, at, "it became shorter while it was read")
	}
	return fault(err, at, "reading")
}

// OpenBytes checks a whole file held in memory. The views of the File are parts of b, which must not change while
// they are used.
func OpenBytes(b []byte) (*File, error) {
	size := int64(len(b))
	n, err := headerSize(b[:min(len(b), prefixSize)], size)
	if err != nil {
		return nil, err
	}

	h, err := parseHeader(b[prefixSize:prefixSize+n], size)
	if err != nil {
		return nil, err
	}

	return &File{header: h, size: size, data: b}, nil
}

// Path gives the path that the file was opened by, "" for bytes in memory.
func (f *File) Path() string { return f.path }

// Size gives the length of the whole file in bytes.
func (f *File) Size() int64 { return f.size }

// Names lists the tensors in the order of their data.
func (f *File) Names() []string {
	names := make([]string, len(f.header.tensors))
	for i := range f.header.tensors {
		names[i] = f.header.tensors[i].Name
	}
	return names
}

// Info says what a tensor is and where it lies; false if there is none of that name.
func (f *File) Info(name string) (Info, bool) {
	found, err := f.find(name)
	if err != nil {
		return Info{}, false
	}
	info := *found
	info.Shape = slices.Clone(info.Shape)
	return info, true
}

// Metadata gives a copy of the header's __metadata__, nil if there is none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.header.metadata) }

// Bytes gives a tensor's data without copying it: a part of the mapping, valid until Close. Writing to it ends the
// program. The errors wrap ErrUnknownTensor or ErrClosed.
func (f *File) Bytes(name string) ([]byte, error) {
	info, err := f.find(name)
	if err != nil {
		return nil, err
	}

	f.mu.RLock()
	defer f.mu.RUnlock()

	if f.data == nil {
		return nil, f.closed(name)
	}

	end := info.Offset + info.Size
	return f.data[info.Offset:end:end], nil
}

// find looks a tensor up for the methods that read it.
func (f *File) find(name string) (*Info, error) {
	i, ok := f.header.byName[name]
	if !ok {
		return nil, locate(ErrUnknownTensor, f.path, name)
	}
	return &f.header.tensors[i], nil
}

func (f *File) closed(name string) error {
	return locate(fault(ErrClosed, -1, "the file may not be read any more"), f.path, name)
}

// ReadAt copies len(p) bytes of a tensor, starting off bytes into it, through pread: no page of the mapping is
// touched, so resident memory does not grow. As with io.ReaderAt, fewer bytes come with io.EOF if the tensor ends.
// Other errors wrap ErrUnknownTensor, ErrRange, ErrClosed, ErrTruncated if the file became shorter since Open, or an
// error of the operating system.
func (f *File) ReadAt(name string, p []byte, off int64) (int, error) {
	info, err := f.find(name)
	if err != nil {
		return 0, err
	}

	if off < 0 || off > info.Size {
		return 0, locate(fault(ErrRange, -1, "offset %d, size %d", off, info.Size), f.path, name)
	}

	f.mu.RLock()
	defer f.mu.RUnlock()

	if f.data == nil {
		return 0, f.closed(name)
	}

	want := p[:min(int64(len(p)), info.Size-off)]
	n, err := f.pread(want, info.Offset+off)
	if err != nil {
		return n, locate(readError(err, info.Offset+off+int64(n)), f.path, name)
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

// faultAround is how far from the page that was touched the system may map others, which have to be given back with
// it. Where those belong to a neighbour in use, they come back when touched.
const faultAround = 64 << 10

// Release tells the system that the pages of a tensor's view are not needed for now, so that resident memory stays
// bounded when a file is streamed through Bytes. The view stays valid; reading it again fetches the pages anew. It
// does nothing for bytes in memory.
func (f *File) Release(name string) error {
	info, err := f.find(name)
	if err != nil {
		return err
	}

	f.mu.RLock()
	defer f.mu.RUnlock()

	if f.data == nil {
		return f.closed(name)
	}
	if !f.mapped || info.Size == 0 {
		return nil
	}

	page := int64(os.Getpagesize())
	begin := max(0, info.Offset-faultAround) / page * page
	end := min(f.size, info.Offset+info.Size+faultAround)
	if err := unix.Madvise(f.data[begin:end], unix.MADV_DONTNEED); err != nil {
		return locate(fault(err, info.Offset, "madvise"), f.path, name)
	}

	return nil
}

// View calls fn with a tensor's data, as Bytes gives it, and returns its error. If the file was shortened after
// Open, so that a page of the view is gone, fn is left at the access and View returns an error wrapping
// ErrTruncated; an error of the disk is EIO. This holds for accesses of fn's own goroutine; one that fn starts
// has to call View itself. fn must not keep the slice.
func (f *File) View(name string, fn func(data []byte) error) (err error) {
	data, err := f.Bytes(name)
	if err != nil {
		return err
	}
	if !f.mapped || len(data) == 0 {
		return fn(data)
	}
	return mmapsafe.Do(func() error { return fn(data) })
}

// lost is the error of a fault at a byte of the mapping.
func (f *File) lost(at int64) error {
	name := ""
	for _, t := range f.header.tensors {
		if t.Offset <= at && at < t.Offset+t.Size {
			name = t.Name
		}
	}

	if !f.shortened() {
		return locate(fault(unix.EIO, at, "reading"), f.path, name)
	}

	return locate(fault(ErrTruncated, at, "it became shorter while it was read"), f.path, name)
}

// shortened reports whether pages of the mapping are gone. Where the file was closed meanwhile, it was asked before.
func (f *File) shortened() bool {
	stat, err := f.file.Stat()
	return err != nil || stat.Size() < f.size
}

// Close unmaps the file. Views must not be used any more: touching one ends the program. A second Close does nothing.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.data == nil {
		return nil
	}

	data := f.data
	f.data = nil
	if !f.mapped {
		return nil
	}

	mmapsafe.Remove(data, f.shortened())
	return locate(errors.Join(unix.Munmap(data), f.file.Close()), f.path, "")
}
