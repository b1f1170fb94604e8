package safetensors

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/modelcompress/compress/internal/tensorfile"
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
	file   *tensorfile.File
}

// Open checks the header of the file at path against its size and maps the file, read-only. Symbolic links are
// followed. It returns an *Error around one of the rules of the format, ErrNotRegular, or an error of the operating
// system.
func Open(path string) (*File, error) {
	f, err := tensorfile.Open(path)
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
	size, err := tensorfile.Size(f)
	if err != nil {
		return nil, err
	}

	h, err := readHeader(f, size)
	if err != nil {
		return nil, err
	}

	sf := &File{path: path, header: h}
	sf.file, err = tensorfile.Map(f, size, sf.lost)
	return sf, err
}

// readHeader reads the header through pread, so that no page of it stays in memory, and checks it.
func readHeader(f *os.File, size int64) (*header, error) {
	if size > maxFileSize {
		return nil, fault(ErrOffsets, -1, "%d bytes are too many for this machine", size)
	}

	prefix := make([]byte, min(prefixSize, size))
	if err := tensorfile.ReadFull(f, prefix, 0); err != nil {
		return nil, err
	}

	n, err := headerSize(prefix, size)
	if err != nil {
		return nil, err
	}

	text := make([]byte, n)
	if err := tensorfile.ReadFull(f, text, prefixSize); err != nil {
		return nil, err
	}

	return parseHeader(text, size)
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

	return &File{header: h, file: tensorfile.Memory(b)}, nil
}

// Path gives the path that the file was opened by, "" for bytes in memory.
func (f *File) Path() string { return f.path }

// Size gives the length of the whole file in bytes.
func (f *File) Size() int64 { return f.file.Size() }

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
	i, ok := f.header.byName[name]
	if !ok {
		return Info{}, false
	}
	info := f.header.tensors[i]
	info.Shape = slices.Clone(info.Shape)
	return info, true
}

// Metadata gives a copy of the header's __metadata__, nil if there is none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.header.metadata) }

// region looks a tensor up for the methods that read it.
func (f *File) region(name string) (tensorfile.Region, error) {
	i, ok := f.header.byName[name]
	if !ok {
		return tensorfile.Region{}, locate(ErrUnknownTensor, f.path, name)
	}
	t := &f.header.tensors[i]
	return tensorfile.Region{Name: name, Offset: t.Offset, Size: t.Size}, nil
}

// located puts the file and the tensor to a fault, and leaves io.EOF and what a caller's function returned as they are.
func (f *File) located(err error, name string) error {
	if _, ok := err.(*tensorfile.Fault); !ok {
		return err
	}
	return locate(err, f.path, name)
}

// Bytes gives a tensor's data without copying it: a part of the mapping, valid until Close. Writing to it ends the
// program. The errors wrap ErrUnknownTensor or ErrClosed.
func (f *File) Bytes(name string) ([]byte, error) {
	r, err := f.region(name)
	if err != nil {
		return nil, err
	}
	data, err := f.file.Bytes(r)
	return data, f.located(err, name)
}

// ReadAt copies len(p) bytes of a tensor, starting off bytes into it, through pread: no page of the mapping is
// touched, so resident memory does not grow. As with io.ReaderAt, fewer bytes come with io.EOF if the tensor ends.
// Other errors wrap ErrUnknownTensor, ErrRange, ErrClosed, ErrTruncated if the file became shorter since Open, or an
// error of the operating system.
func (f *File) ReadAt(name string, p []byte, off int64) (int, error) {
	r, err := f.region(name)
	if err != nil {
		return 0, err
	}
	n, err := f.file.ReadAt(r, p, off)
	return n, f.located(err, name)
}

// Release tells the system that the pages of a tensor's view are not needed for now, so that resident memory stays
// bounded when a file is streamed through Bytes. The view stays valid; reading it again fetches the pages anew. It
// does nothing for bytes in memory.
func (f *File) Release(name string) error {
	r, err := f.region(name)
	if err != nil {
		return err
	}
	return f.located(f.file.Release(r), name)
}

// View calls fn with a tensor's data, as Bytes gives it, and returns its error. If the file was shortened after
// Open, so that a page of the view is gone, fn is left at the access and View returns an error wrapping
// ErrTruncated; an error of the disk is EIO. This holds for accesses of fn's own goroutine; one that fn starts
// has to call View itself. fn must not keep the slice.
func (f *File) View(name string, fn func(data []byte) error) error {
	r, err := f.region(name)
	if err != nil {
		return err
	}
	return f.located(f.file.View(r, fn), name)
}

// lost is the error of a fault at a byte of the mapping.
func (f *File) lost(at int64, err error) error {
	for _, t := range f.header.tensors {
		if t.Offset <= at && at < t.Offset+t.Size {
			return locate(err, f.path, t.Name)
		}
	}
	return locate(err, f.path, "")
}

// Close unmaps the file. Views must not be used any more: touching one ends the program. A second Close does nothing.
func (f *File) Close() error { return locate(f.file.Close(), f.path, "") }
