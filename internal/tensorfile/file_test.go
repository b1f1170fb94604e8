package tensorfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

// written is a file of some bytes.
func written(t *testing.T, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func opened(t *testing.T, path string) *File {
	t.Helper()
	raw, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	size, err := Size(raw)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Map(raw, size, func(at int64, err error) error { return fmt.Errorf("described at %d: %w", at, err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestFile: a mapped file and bytes in memory answer alike.
func TestFile(t *testing.T) {
	content := []byte("0123456789")
	for name, f := range map[string]*File{"mapped": opened(t, written(t, content)), "memory": Memory(content)} {
		r := Region{"r", 2, 5}
		view, err := f.Bytes(r)
		if err != nil || string(view) != "23456" || cap(view) != 5 || f.Size() != 10 {
			t.Errorf("%s: %q (capacity %d), %v", name, view, cap(view), err)
		}

		p := make([]byte, 4)
		if n, err := f.ReadAt(r, p, 1); n != 4 || err != nil || string(p) != "3456" {
			t.Errorf("%s: %d %q %v", name, n, p, err)
		}
		if n, err := f.ReadAt(r, p, 3); n != 2 || err != io.EOF || string(p[:n]) != "56" {
			t.Errorf("%s: %d %q %v", name, n, p, err)
		}
		if _, err := f.ReadAt(r, p, 6); !errors.Is(err, ErrRange) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := f.ReadAt(r, p, -1); !errors.Is(err, ErrRange) {
			t.Errorf("%s: %v", name, err)
		}
		if err := f.Release(r); err != nil || string(view) != "23456" {
			t.Errorf("%s: %q after Release, %v", name, view, err)
		}

		mine := errors.New("mine")
		if err := f.View(r, func(b []byte) error { return errors.Join(mine, fmt.Errorf("%s", b)) }); !errors.Is(err,
			mine) {
			t.Errorf("%s: %v", name, err)
		}

		if err := errors.Join(f.Close(), f.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, err = f.ReadAt(r, p, 0)
		if !errors.Is(err, ErrClosed) || !errors.Is(f.Release(r), ErrClosed) || !errors.Is(f.View(r, nil), ErrClosed) {
			t.Errorf("%s: closed: %v", name, err)
		}
	}
}

// TestEmptyFile: the system maps nothing, and there is nothing to read.
func TestEmptyFile(t *testing.T) {
	f := opened(t, written(t, nil))
	if b, err := f.Bytes(Region{}); err != nil || len(b) != 0 || f.Size() != 0 {
		t.Error(b, err)
	}
	if err := errors.Join(f.Release(Region{}), f.Close()); err != nil {
		t.Error(err)
	}
}

// TestLostPage: the error of a page that is gone is the one that the owner describes.
func TestLostPage(t *testing.T) {
	systemtest.NeedsCuts(t)
	const size = 1 << 18
	path := written(t, make([]byte, size))
	f := opened(t, path)
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	err := f.View(Region{"r", 0, size}, func(b []byte) error { return fmt.Errorf("read %d", b[size-1]) })
	if !errors.Is(err, ErrTruncated) || !bytes.HasPrefix([]byte(err.Error()), []byte("described at 262143: ")) {
		t.Error(err)
	}
}

// TestNotRegular: what is no file is refused, without waiting for a pipe's other end.
func TestNotRegular(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := systemtest.Pipe(pipe); err != nil {
		t.Skip("no pipes here: ", err)
	}
	for _, path := range []string{pipe, t.TempDir()} {
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Size(f); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: %v", path, err)
		}
		f.Close()
	}
}

// TestReadFull: a file that is too short was truncated, at the place where the bytes were to be read.
func TestReadFull(t *testing.T) {
	f, err := Open(written(t, []byte("0123456789")))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	p := make([]byte, 4)
	if err := ReadFull(f, p, 6); err != nil || string(p) != "6789" {
		t.Errorf("%q, %v", p, err)
	}
	var at *Fault
	if err := ReadFull(f, p, 7); !errors.Is(err, ErrTruncated) || !errors.As(err, &at) || at.Offset != 7 {
		t.Error(err)
	}
	if err := ReadFull(f, nil, 100); err != nil {
		t.Error(err)
	}
}
