package safetensors

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

func TestReadAt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	b := write(t, path, mixed(), OrderGiven, 1, 1<<20)
	mem, err := OpenBytes(b)
	if err != nil {
		t.Fatal(err)
	}

	for _, f := range []*File{mustOpen(t, path), mem} {
		want, _ := f.Bytes("t1.U64")
		for _, c := range []struct {
			n    int
			off  int64
			got  int
			want error
		}{
			{0, 0, 0, nil},
			{5, 3, 5, nil},
			{len(want), 0, len(want), nil},
			{8, int64(len(want)) - 3, 3, io.EOF},
			{1, int64(len(want)), 0, io.EOF},
			{1, -1, 0, ErrRange},
			{1, int64(len(want)) + 1, 0, ErrRange},
		} {
			p := make([]byte, c.n)
			n, err := f.ReadAt("t1.U64", p, c.off)
			if n != c.got || !errors.Is(err, c.want) || c.got > 0 && !bytes.Equal(p[:n], want[c.off:c.off+int64(n)]) {
				t.Errorf("%d at %d: %d, %v", c.n, c.off, n, err)
			}
		}
	}
}

// TestUnknownAndClosed asks for what is not there, before and after Close.
func TestUnknownAndClosed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, SingleName)
	b := write(t, path, mixed(), OrderGiven, 1, 1<<20)
	mem, err := OpenBytes(b)
	if err != nil {
		t.Fatal(err)
	}

	type viewer interface {
		Source
		View(name string, fn func([]byte) error) error
	}

	for _, s := range []viewer{mustOpen(t, path), mustOpenDir(t, dir), mem} {
		call := func(name string) []error {
			_, err1 := s.Bytes(name)
			_, err2 := s.ReadAt(name, nil, 0)
			return []error{err1, err2, s.Release(name), s.View(name, func([]byte) error { return nil })}
		}

		for _, err := range call("none") {
			if !errors.Is(err, ErrUnknownTensor) || !strings.Contains(err.Error(), `"none"`) {
				t.Errorf("got %v", err)
			}
		}

		if _, ok := s.Info("none"); ok {
			t.Error("found")
		}

		for _, err := range call("empty") {
			if err != nil {
				t.Error(err)
			}
		}

		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Error(err)
		}

		for _, err := range call("scalar") {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("got %v", err)
			}
		}
	}

	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestShrunk shortens a file under its readers: an error each, not the end of the program.
func TestShrunk(t *testing.T) {
	systemtest.NeedsCuts(t)
	path := filepath.Join(t.TempDir(), "x")
	write(t, path, large(), OrderGiven, 1, 1<<30)
	f := mustOpen(t, path)
	last := large()[39]
	info, _ := f.Info(last.Name)
	if err := os.Truncate(path, info.Offset+1000); err != nil {
		t.Fatal(err)
	}

	sum := func(data []byte) error {
		n := byte(0)
		for _, b := range data {
			n += b
		}
		if n == 0 {
			return errors.New("all zero")
		}
		return nil
	}

	err := f.View(last.Name, sum)
	var e *Error
	if !errors.Is(err, ErrTruncated) || !errors.As(err, &e) || e.Tensor != last.Name || e.Offset < info.Offset+1000 ||
		e.Offset >= info.Offset+info.Size {
		t.Errorf("View: %v", err)
	}

	if n, err := f.ReadAt(last.Name, make([]byte, info.Size), 0); !errors.Is(err, ErrTruncated) || n != 1000 {
		t.Errorf("ReadAt: %d, %v", n, err)
	}
	if err := f.View(large()[0].Name, sum); err != nil {
		t.Errorf("a tensor that is still there: %v", err)
	}
	if _, err := Open(path); !errors.Is(err, ErrTruncated) {
		t.Errorf("Open: %v", err)
	}
}

// TestViewPassesOn gives errors and panics of the function on as they are.
func TestViewPassesOn(t *testing.T) {
	f := mustOpen(t, "testdata/all-dtypes.safetensors")
	if err := f.View("a.U8", func([]byte) error { return io.ErrNoProgress }); err != io.ErrNoProgress {
		t.Errorf("got %v", err)
	}

	for _, fault := range []func(data []byte) error{
		func([]byte) error { panic("mine") },
		func(data []byte) error { data[len(data)] = 0; return nil },
		func([]byte) error { var p *int; *p++; return nil },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a panic was swallowed")
				}
			}()
			_ = f.View("a.U8", fault)
		}()
	}
}

// resident reads from the system how much of the mapping of path is in memory, in bytes.
func resident(t *testing.T, path string) int64 {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Skip("no /proc/self/smaps here: ", err)
	}
	defer f.Close()

	inside := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if strings.Contains(fields[0], "-") {
			inside = strings.HasSuffix(lines.Text(), path)
		} else if inside && fields[0] == "Rss:" {
			kb, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}

	t.Skip("the mapping is not listed")
	return 0
}

// TestBoundedMemory streams a file through views and Release, and through ReadAt. A tensor has about
// 80 KB; the bound leaves room for what the system maps around a fault.
func TestBoundedMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bounded")
	write(t, path, large(), OrderGiven, 1, 1<<30)
	f := mustOpen(t, path)
	if n := resident(t, path); n > 0 {
		t.Errorf("%d bytes after Open", n)
	}

	for _, info := range large() {
		if _, err := f.ReadAt(info.Name, make([]byte, 60_000), 0); err != nil {
			t.Fatal(err)
		}
	}

	if n := resident(t, path); n > 0 {
		t.Errorf("%d bytes after ReadAt of everything", n)
	}

	for _, info := range large() {
		data, err := f.Bytes(info.Name)
		if err != nil || !bytes.Equal(data, dataOf(info)) {
			t.Fatal(info, err)
		}

		if err := f.Release(info.Name); err != nil {
			t.Fatal(err)
		}
		if n := resident(t, path); n > 256<<10 {
			t.Errorf("%d bytes after %s", n, info.Name)
		}
	}
}

// TestOracleFilesOpen opens every file of the oracle and compares mapping and pread.
func TestOracleFilesOpen(t *testing.T) {
	root := os.Getenv("COMPRESS_ORACLE")
	if root == "" {
		root = filepath.Join("..", "..", "shared", "oracle")
	}
	if _, err := os.Stat(root); err != nil {
		t.Skip("skipped: no ", root)
	}

	files := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != extension {
			return err
		}

		files++
		f, err := Open(path)
		if err != nil {
			t.Error(err)
			return nil
		}
		defer f.Close()

		for _, name := range f.Names() {
			data, err := f.Bytes(name)
			p := make([]byte, min(len(data), 4096))
			if _, rerr := f.ReadAt(name, p, 0); err != nil || rerr != nil || !bytes.Equal(p, data[:len(p)]) {
				t.Errorf("%s: %s: %v %v", path, name, err, rerr)
			}
		}

		return nil
	})

	t.Logf("%d files", files)
	if err != nil {
		t.Error(err)
	}
}
