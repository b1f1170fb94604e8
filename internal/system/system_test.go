package system

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func opened(t *testing.T, path string, flag int) *os.File {
	t.Helper()
	f, err := OpenFile(path, flag, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestLock: of two that have a file open one has its lock, until it closes it; the file can be read and written by
// the other meanwhile, renamed and removed.
func TestLock(t *testing.T) {
	path := write(t, "text")
	a, b := opened(t, path, os.O_RDWR), opened(t, path, os.O_RDWR)
	if err := Lock(a); err != nil {
		t.Fatal(err)
	}
	if err := TryLock(b); !errors.Is(err, ErrLocked) {
		t.Errorf("a second lock: %v", err)
	}

	if _, err := b.WriteAt([]byte("T"), 0); err != nil {
		t.Errorf("a locked file cannot be written: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "Text" {
		t.Errorf("a locked file reads as %q, %v", text, err)
	}

	moved := path + ".moved"
	if err := os.Rename(path, moved); err != nil {
		t.Errorf("an open file cannot be renamed: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := TryLock(b); err != nil {
		t.Errorf("the lock of a closed file stays: %v", err)
	}
	if err := os.Remove(moved); err != nil {
		t.Errorf("an open file cannot be removed: %v", err)
	}
}

// TestLockOfFolder: a folder's lock keeps others out, also other processes, lets it be renamed, and goes with the
// process that has it, however that ends.
func TestLockOfFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if os.Getenv("COMPRESS_LOCK_CHILD") != "" {
		dir = os.Getenv("COMPRESS_LOCK_CHILD")
		f, err := OpenFolder(dir)
		if err == nil {
			err = f.TryLock()
		}
		fmt.Printf("lock: %v\n", err)
		os.Exit(0) // without a Close
	}

	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.TryLock(); err != nil {
		t.Fatal(err)
	}

	child := func() string {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLockOfFolder$")
		cmd.Env = append(os.Environ(), "COMPRESS_LOCK_CHILD="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		line, _, _ := bytes.Cut(out, []byte("\n"))
		return string(bytes.TrimSpace(line))
	}

	if got := child(); got != "lock: "+ErrLocked.Error() {
		t.Errorf("another process: %s", got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	for range 2 { // the second finds what the first has left
		if got := child(); got != "lock: <nil>" {
			t.Errorf("behind it: %s", got)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 1 {
		t.Errorf("%v, %v are left", left, err)
	}
}

// TestWhatIsNoFolder: a file, a link and nothing are told.
func TestWhatIsNoFolder(t *testing.T) {
	path := write(t, "text")
	if f, err := OpenFolder(path); !Is(err, syscall.ENOTDIR) {
		_ = f.Close()
		t.Errorf("a file: %v", err)
	}
	if _, err := OpenFolder(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}

	link := filepath.Join(filepath.Dir(path), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Logf("links cannot be made here: %v", err)
		return
	}
	if f, err := OpenFile(link, os.O_RDONLY|NoFollow, 0); err == nil {
		_ = f.Close()
		t.Error("a link was followed")
	}
}

// TestOpenFile has the flags of package os.
func TestOpenFile(t *testing.T) {
	path := write(t, "text")
	if _, err := OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file that is there is made: %v", err)
	}
	if _, err := opened(t, path, os.O_APPEND|os.O_WRONLY).WriteString(" more"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "text more" {
		t.Errorf("%q, %v", text, err)
	}

	f := opened(t, path, os.O_TRUNC|os.O_RDWR)
	if st, err := f.Stat(); err != nil || st.Size() != 0 {
		t.Errorf("%v, %v", st, err)
	}
	if st, err := f.Stat(); err != nil || !Mine(st) {
		t.Errorf("%v: somebody else's", err)
	}

	dir, err := OpenFolder(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	in, err := OpenIn(dir.File, "f", os.O_RDONLY|NoFollow|NonBlock)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(in.Close(), SyncFolder(dir.File), Writable(filepath.Dir(path))); err != nil {
		t.Error(err)
	}
}

// TestMap: a mapped file is what the file is; pages that were dropped come again.
func TestMap(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	f := opened(t, write(t, string(text)), os.O_RDONLY)
	data, err := Map(f, len(text))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		Prefetch(data)
		Populate(data)
		if !bytes.Equal(data, text) {
			t.Error("other bytes")
		}
		if err := Drop(data); err != nil {
			t.Error(err)
		}
	}
	if err := Unmap(data); err != nil {
		t.Error(err)
	}

	page, err := Anonymous(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	page[0], page[len(page)-1] = 1, 2
	if err := Unmap(page); err != nil {
		t.Error(err)
	}
}

// TestState: a file's state is the same until it changes.
func TestState(t *testing.T) {
	path := write(t, "text")
	first, changed, err := State(path)
	again, _, errAgain := State(path)
	if err != nil || errAgain != nil || first != again || time.Since(changed) > time.Hour {
		t.Errorf("%s, %s, %v, %v, %v", first, again, changed, err, errAgain)
	}

	if err := os.WriteFile(path, []byte("longer"), 0o666); err != nil {
		t.Fatal(err)
	}
	if other, _, err := State(path); err != nil || other == first {
		t.Errorf("a longer file has the state of the one before: %s, %v", other, err)
	}
	if _, _, err := State(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

// TestErrors: what is full is told from what is not there.
func TestErrors(t *testing.T) {
	for _, err := range []error{syscall.ENOSPC, &fs.PathError{Err: syscall.EDQUOT}} {
		if !Full(err) || !Failing(err) {
			t.Errorf("%v is not full", err)
		}
	}
	if Full(syscall.EIO) || !Failing(syscall.EIO) || Failing(fs.ErrNotExist) || Failing(nil) {
		t.Error("errors are mistaken")
	}
}

// TestFigures: the process has used time and memory.
func TestFigures(t *testing.T) {
	for ProcessorTime() <= 0 {
		_ = bytes.Repeat([]byte{1}, 1<<16)
	}
	if n := PeakMemory(); n < 1<<20 {
		t.Errorf("%d bytes of memory", n)
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if free, most := Space(dir); free == 0 || most < free && most >= 0 {
		t.Errorf("%d and %d bytes are free", free, most)
	}
	LimitsAreErrors()
}
