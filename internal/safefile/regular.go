// Package safefile opens files that are read and have to be regular ones. In the place of one, a pipe, a socket
// or a device is an error at once: opened like a file, it could hold the program up for ever. It also writes
// files that appear at once and whole.
package safefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/modelcompress/compress/internal/system"
)

// Ways in which a file can be refused.
var (
	ErrNotRegular = errors.New("not a regular file")
	ErrTooLarge   = errors.New("too large")
)

// Place is where an output of that name is to be written: for a link to a folder that folder, so that the link
// stays, otherwise the name itself.
func Place(dir string) string {
	if st, err := os.Lstat(dir); err != nil || st.Mode()&fs.ModeSymlink == 0 {
		return dir
	}
	if to, err := filepath.EvalSymlinks(dir); err == nil {
		return to
	}
	return dir
}

// Open opens a file or a folder. Links are followed. The error wraps ErrNotRegular, or is one of the operating system.
func Open(path string) (*os.File, error) {
	f, err := system.OpenFile(path, os.O_RDONLY|system.NonBlock, 0)
	return checked(f, path, err)
}

// Use gives the content of a file to a function, for as long as that runs. The error is that of the function, or as
// for [Open].
func Use(path string, use func(r io.ReaderAt, size int64) error) error {
	f, err := Open(path)
	if err != nil {
		return err
	}
	defer f.Close()

	st, err := f.Stat()
	if err != nil {
		return err
	}
	return use(f, st.Size())
}

// In opens a file or a folder below root. The error wraps ErrNotRegular, or is one of the
// operating system.
func In(root *Folder, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|system.NonBlock, 0)
	return checked(f, filepath.Join(root.Name(), name), err)
}

// checked closes what is neither a file nor a folder.
func checked(f *os.File, path string, err error) (*os.File, error) {
	if system.Is(err, syscall.ENXIO) { // what opening a socket gives
		return nil, fmt.Errorf("%s: %w but a socket", path, ErrNotRegular)
	}
	if system.Is(err, syscall.ENOTDIR) {
		return nil, below{err}
	}
	if err != nil {
		return nil, err
	}

	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		err = fmt.Errorf("%s: %w but a %s (HINT: write what it gives to a file first)", path, ErrNotRegular,
			kind(st.Mode()))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}

	return f, nil
}

// below is the error about a file below one that is no folder: there is none, as [fs.ErrNotExist] says.
type below struct{ error }

// Is implements the interface of package errors.
func (b below) Is(target error) bool { return target == fs.ErrNotExist }

// Unwrap implements the interface of package errors.
func (b below) Unwrap() error { return b.error }

// kind names what is no file.
func kind(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "pipe"
	case m&fs.ModeSocket != 0:
		return "socket"
	}
	return "device"
}

// ReadFile reads a whole file of at most limit bytes. The error wraps ErrNotRegular or ErrTooLarge, or is one of the
// operating system.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return all(f, path, limit)
}

// ReadIn reads a whole file of at most limit bytes in a [Folder]. The error wraps
// ErrNotRegular or ErrTooLarge, or is one of the operating system.
func ReadIn(dir, name string, limit int64) ([]byte, error) {
	root, err := OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	f, err := In(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	return all(f, filepath.Join(dir, name), limit)
}

func all(f *os.File, path string, limit int64) ([]byte, error) {
	if st, err := f.Stat(); err == nil && st.IsDir() {
		return nil, fmt.Errorf("%s: %w but a folder (HINT: name a file)", path, ErrNotRegular)
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s: %w: more than %d bytes", path, ErrTooLarge, limit)
	}
	return text, err
}
