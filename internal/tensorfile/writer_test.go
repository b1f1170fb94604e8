package tensorfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// layout is a head that ends in zeros, and two tensors with a gap between them.
func layout() *Layout {
	return &Layout{
		Head: []byte("HEAD\x01\x00\x00"), Size: 64,
		Regions: []Region{{"a", 16, 10}, {"b", 32, 20}, {"none", 52, 0}},
	}
}

func create(t *testing.T, path string, opts Options) *Writer {
	t.Helper()
	w, err := Create(path, layout(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// want is the whole file.
var want = slices.Concat([]byte("HEAD\x01"), make([]byte, 11), bytes.Repeat([]byte("a"), 10), make([]byte, 6),
	bytes.Repeat([]byte("b"), 20), make([]byte, 12))

func TestWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	w := create(t, path, Options{})
	a := bytes.Repeat([]byte("a"), 10)
	for _, at := range []int64{5, 0, 3, 8} { // parts that meet, overlap and come in any order
		if err := w.WriteAt("a", a[at:min(at+5, 10)], at); err != nil {
			t.Fatal(err)
		}
	}
	if w.Done("b") || !w.Done("a") || !w.Done("none") || w.Done("x") || !slices.Equal(w.Remaining(), []string{"b"}) {
		t.Error(w.Remaining())
	}
	if err := w.Finish(); !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), `1 of 3: "b"`) {
		t.Error(err)
	}

	err := errors.Join(w.WriteTensor("b", bytes.Repeat([]byte("b"), 20)), w.Sync(), w.Sync(), w.Finish(), w.Finish(),
		w.Sync(), w.Abort(), w.Suspend())
	got, readErr := os.ReadFile(path)
	if err := errors.Join(err, readErr); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWriterUse(t *testing.T) {
	w := create(t, filepath.Join(t.TempDir(), "f"), Options{})
	for i, c := range []struct{ got, want error }{
		{w.WriteTensor("x", nil), ErrUnknown},
		{w.WriteTensor("a", make([]byte, 9)), ErrSize},
		{w.WriteAt("a", make([]byte, 2), 9), ErrRange},
		{w.WriteAt("a", nil, -1), ErrRange},
		{w.WriteAt("x", nil, 0), ErrUnknown},
		{w.MarkDone("x"), ErrUnknown},
		{w.MarkDone("a"), ErrNotResumed},
		{errors.Join(w.Suspend(), w.Finish()), ErrIncomplete},
		{w.WriteAt("a", make([]byte, 1), 0), ErrClosed},
		{w.MarkDone("b"), ErrClosed},
		{w.Sync(), ErrClosed},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%d: %v, want %v", i, c.got, c.want)
		}
	}
}

// TestResumed: a process that was killed leaves the file as it was; whatever part of the head it had written, the file
// is taken up or begun anew, and others are refused.
func TestResumed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	w := create(t, path, Options{})
	if err := w.WriteTensor("a", bytes.Repeat([]byte("a"), 10)); err != nil {
		t.Fatal(err)
	}
	w.file.Close() // as the system does it for a process that is gone, with the lock

	whole, err := os.ReadFile(path + PartialSuffix)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 6 {
		torn := make([]byte, len(whole))
		copy(torn, whole[:n])
		if n == 5 {
			copy(torn, whole)
		}
		if err := os.WriteFile(path+PartialSuffix, torn, 0o600); err != nil {
			t.Fatal(err)
		}

		w, err := Reopen(path, layout(), Options{})
		if err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
		if err := w.MarkDone("a"); (err == nil) != (n == 5) {
			t.Errorf("after %d bytes of the head: %v", n, err)
		}
		if err := w.Suspend(); err != nil {
			t.Fatal(err)
		}
	}

	other := layout()
	other.Head[0] = 'h'
	if _, err := Reopen(path, other, Options{}); !errors.Is(err, ErrLayoutChanged) {
		t.Error(err)
	}
	longer := layout()
	longer.Size++
	if _, err := Reopen(path, longer, Options{}); !errors.Is(err, ErrLayoutChanged) {
		t.Error(err)
	}

	w, err = Reopen(path, layout(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(w.MarkDone("a"), w.WriteTensor("b", bytes.Repeat([]byte("b"), 20)), w.Finish())
	got, readErr := os.ReadFile(path)
	if err := errors.Join(err, readErr); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}

	if w, err := Reopen(path, layout(), Options{}); err != nil || len(w.Remaining()) > 0 || w.MarkDone("a") != nil {
		t.Error("finished:", err)
	}
	if _, err := Reopen(path, layout(), Options{Overwrite: true}); !errors.Is(err, ErrNoPartial) {
		t.Error(err)
	}
}

// TestPlaces: what stands at the final name stays unless it may go, one writer at a time has the hidden one, and links
// in its place are not followed.
func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	w := create(t, path, Options{})
	if _, err := Create(path, layout(), Options{}); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(w.WriteTensor("a", make([]byte, 10)), w.WriteTensor("b", make([]byte, 20)))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); !errors.Is(err, ErrExists) {
		t.Error("a file that appeared meanwhile:", err)
	}
	if err := w.Abort(); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(path, layout(), Options{}); !errors.Is(err, ErrExists) {
		t.Error(err)
	}

	if err := os.Symlink(path, path+PartialSuffix); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(path, layout(), Options{Overwrite: true}); !errors.Is(err, unix.ELOOP) {
		t.Error("a link:", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestFullDisk: a disk that is full says so, with what is needed, before anything is written and while it is.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	huge := layout()
	huge.Size = 1 << 60
	if _, err := Create(path, huge, Options{}); !errors.Is(err, ErrNoSpace) && !errors.Is(err, ErrFileSize) ||
		!strings.Contains(err.Error(), fmt.Sprint(huge.Size)) {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	for cause, want := range map[error]error{
		unix.ENOSPC: ErrNoSpace, unix.EDQUOT: ErrNoSpace, unix.EFBIG: ErrFileSize,
	} {
		w := create(t, path, Options{WriteAt: func(*os.File, []byte, int64) (int, error) { return 3, cause }})
		if err := w.WriteTensor("a", make([]byte, 10)); !errors.Is(err, want) || w.Done("a") ||
			!strings.Contains(err.Error(), "7 bytes") {
			t.Error(err)
		}
		if err := w.Abort(); err != nil {
			t.Error(err)
		}
	}
}
