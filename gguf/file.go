package gguf

import (
	"os"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/tensorfile"
)

// File is one open GGUF file. All methods but Close may be called from several goroutines at once.
type File struct {
	path   string
	header *header
	file   *tensorfile.File
}

// Open checks the header of the file at path against its size and maps the file, read-only. Symbolic links are
// followed. Of a split file it opens one part; [OpenModel] opens all. It returns an *[Error] around one of the rules
// of the format, [ErrNotRegular], or an error of the operating system.
func Open(path string) (*File, error) { return openWith(path, tensorfile.Open) }

// openWith is Open where another function opens files, which gives a path's for reading.
func openWith(path string, open func(path string) (*os.File, error)) (*File, error) {
	raw, err := open(path)
	if err != nil {
		return nil, locate(err, path, "")
	}

	f := &File{path: path, header: &header{}}
	size, err := tensorfile.Size(raw)
	if err == nil {
		f.file, err = tensorfile.Map(raw, size, f.lost)
	}
	if err != nil {
		_ = raw.Close()
		return nil, locate(err, path, "")
	}

	// The header is read from the mapping, so that its strings are copied once; a page that is lost meanwhile is an
	// error like any other.
	err = mmapsafe.Do(func() (err error) {
		whole := tensorfile.Region{Size: f.file.Size()}
		data, err := f.file.Bytes(whole)
		if err == nil {
			f.header, err = parse(data)
		}
		return err
	})
	if err == nil {
		err = f.file.Release(tensorfile.Region{Size: min(f.header.size, f.file.Size())})
	}
	if err != nil {
		_ = f.file.Close()
		return nil, locate(err, path, "")
	}

	return f, nil
}

// OpenBytes checks a whole file held in memory. The views of the File are parts of b, which must not change while
// they are used.
func OpenBytes(b []byte) (*File, error) {
	h, err := parse(b)
	if err != nil {
		return nil, err
	}
	return &File{header: h, file: tensorfile.Memory(b)}, nil
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

// Path gives the path that the file was opened by, "" for bytes in memory.
func (f *File) Path() string { return f.path }

// Size gives the length of the whole file in bytes.
func (f *File) Size() int64 { return f.file.Size() }

// Version gives the version of the format that the file names, 2 or 3.
func (f *File) Version() int { return int(f.header.version) }

// Alignment gives the number of bytes that offsets of tensors are multiples of.
func (f *File) Alignment() int64 { return f.header.alignment }

// Metadata gives the key-value pairs in the order of the file.
func (f *File) Metadata() Metadata { return slices.Clone(f.header.metadata) }

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
// program. The errors wrap [ErrUnknownTensor] or [ErrClosed].
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
// Other errors wrap [ErrUnknownTensor], [ErrRange], [ErrClosed], [ErrTruncated] if the file became shorter since Open,
// or an error of the operating system.
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

// View calls fn with a tensor's data, as Bytes gives it, and returns its error. If the file was shortened after Open,
// so that a page of the view is gone, fn is left at the access and View returns an error wrapping [ErrTruncated]; an
// error of the disk is EIO. This holds for accesses of fn's own goroutine; one that fn starts has to call View itself.
// fn must not keep the slice.
func (f *File) View(name string, fn func(data []byte) error) error {
	r, err := f.region(name)
	if err != nil {
		return err
	}
	return f.located(f.file.View(r, fn), name)
}

// Close unmaps the file. Views must not be used any more: touching one ends the program. A second Close does nothing.
func (f *File) Close() error { return locate(f.file.Close(), f.path, "") }
