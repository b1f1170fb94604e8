package output

import (
	"errors"
	"os"
	"sync"
	"unsafe"
)

// Direct access: files are written and read past the system's cache of pages, where the file system allows it. What
// is written once and not read again soon costs neither a copy nor cache that something else had, and what is
// read back comes from the device. Only whole pages go this way; what lies before and after them, and
// everything on file systems that refuse, goes through the cache as usual. Both ways give the same bytes.

// Page is what positions in the file and addresses in memory must be multiples of.
const Page = 4096

// least is how many bytes are worth a request of their own.
const least = 16 * Page

// Files are the second openings of files that are being written.
type Files struct {
	mu    sync.Mutex
	twins map[*os.File]*os.File // nil: not possible for this file
}

// twin opens f a second time, once.
func (d *Files) twin(f *os.File) *os.File {
	d.mu.Lock()
	defer d.mu.Unlock()

	t, known := d.twins[f]
	if !known {
		t = reopen(f)
		if d.twins == nil {
			d.twins = map[*os.File]*os.File{}
		}
		d.twins[f] = t
	}

	return t
}

// WriteAt is [os.File.WriteAt] of f, past the cache as far as possible: [Buffer] makes slices for which it is.
// The file must have its size already.
func (d *Files) WriteAt(f *os.File, p []byte, off int64) (int, error) {
	lo, hi := inner(off, int64(len(p)))
	if hi-lo < least || uintptr(unsafe.Pointer(&p[lo-off]))%Page != 0 {
		return f.WriteAt(p, off)
	}

	twin := d.twin(f)
	if twin == nil {
		return f.WriteAt(p, off)
	}
	if n, err := f.WriteAt(p[:lo-off], off); err != nil {
		return n, err
	}

	if n, err := twin.WriteAt(p[lo-off:hi-off], lo); refused(err) { // by this file system after all, or in this place
		if n, err = f.WriteAt(p[lo-off:hi-off], lo); err != nil {
			return int(lo-off) + n, err
		}
	} else if err != nil {
		return int(lo-off) + n, err
	}

	n, err := f.WriteAt(p[hi-off:], hi)
	return int(hi-off) + n, err
}

// inner is the part of n bytes at off that is whole pages.
func inner(off, n int64) (lo, hi int64) {
	return (off + Page - 1) / Page * Page, (off + n) / Page * Page
}

// Close closes the second openings.
func (d *Files) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()

	var errs []error
	for _, t := range d.twins {
		if t != nil {
			errs = append(errs, t.Close())
		}
	}

	d.twins = nil
	return errors.Join(errs...)
}

// Slack is how much longer than its contents the memory for [Buffer] and [Reader.Read] is.
const Slack = 3 * Page

// Buffer is n bytes of buf, which has [Slack] more, for the contents of a file at position off: where the file
// has whole pages, so has the memory.
func Buffer(buf []byte, off, n int64) []byte {
	skew := (off - int64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))%Page) + Page) % Page
	return buf[skew : skew+n : skew+n]
}

// Reader reads a file.
type Reader struct{ plain, twin *os.File }

// OpenReader opens the file at path.
func OpenReader(path string) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &Reader{f, reopen(f)}, nil
}

// Read gives n bytes of the file from off on, which lie in buf, of at least n + [Slack] bytes.
func (r *Reader) Read(buf []byte, off, n int64) ([]byte, error) {
	first := off / Page * Page
	whole := Buffer(buf, 0, (off-first+n+Page-1)/Page*Page)
	p := whole[off-first:][:n]
	if r.twin != nil {
		if got, _ := r.twin.ReadAt(whole, first); int64(got) >= off-first+n { // the file may end within the last page
			return p, nil
		}
	}

	_, err := r.plain.ReadAt(p, off)
	return p, err
}

// Close closes the file.
func (r *Reader) Close() error {
	if r.twin != nil {
		return errors.Join(r.twin.Close(), r.plain.Close())
	}
	return r.plain.Close()
}
