package tensorfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcompress/compress/internal/system"
	"github.com/modelcompress/compress/internal/system/systemtest"
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
	w := New(path, layout(), opts)
	if err := w.Create(); err != nil {
		t.Fatal(err)
	}
	return w
}

func reopen(t *testing.T, path string) *Writer {
	t.Helper()
	w := New(path, layout(), Options{})
	if err := w.Reopen(); err != nil {
		t.Fatal(err)
	}
	return w
}

// fill writes all bytes of a tensor of the layout.
func fill(w *Writer, name string) error {
	r, ok := w.Region(name)
	if !ok {
		return fmt.Errorf("no region %q", name)
	}
	return w.WriteAt(name, bytes.Repeat([]byte(name), int(r.Size)), 0)
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
	var missing *Fault
	if err := w.Finish(); !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), `1 of 3: "b"`) ||
		!errors.As(err, &missing) || missing.Tensor != "b" || w.Finished() {
		t.Error(err)
	}

	err := errors.Join(fill(w, "b"), w.Sync(), w.Sync(), w.Finish(), w.Finish(),
		w.Sync(), w.Abort(), w.Suspend())
	got, readErr := os.ReadFile(path)
	if err := errors.Join(err, readErr); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWriterUse(t *testing.T) {
	w := create(t, filepath.Join(t.TempDir(), "f"), Options{})
	for i, c := range []struct{ got, want error }{
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
	if err := fill(w, "a"); err != nil {
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

		w := reopen(t, path)
		if err := w.MarkDone("a"); (err == nil) != (n == 5) {
			t.Errorf("after %d bytes of the head: %v", n, err)
		}
		if err := w.Suspend(); err != nil {
			t.Fatal(err)
		}
	}

	other := layout()
	other.Head[0] = 'h'
	if err := New(path, other, Options{}).Reopen(); !errors.Is(err, ErrLayoutChanged) {
		t.Error(err)
	}
	longer := layout()
	longer.Size++
	if err := New(path, longer, Options{}).Reopen(); !errors.Is(err, ErrLayoutChanged) {
		t.Error(err)
	}

	w = reopen(t, path)
	err = errors.Join(w.MarkDone("a"), fill(w, "b"), w.Finish())
	got, readErr := os.ReadFile(path)
	if err := errors.Join(err, readErr); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}

	w = reopen(t, path)
	if len(w.Remaining()) > 0 || w.MarkDone("a") != nil || !w.Finished() {
		t.Error("a finished file is not taken for one")
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
	if err := New(path, layout(), Options{Overwrite: true}).Reopen(); !errors.Is(err, ErrNoPartial) {
		t.Error(err)
	}
}

// TestPlaces: what stands at the final name stays unless it may go, one writer at a time has the hidden one, and links
// in its place are not followed.
func TestPlaces(t *testing.T) {
	systemtest.NeedsLinks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	w := create(t, path, Options{})
	if err := New(path, layout(), Options{}).Create(); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(fill(w, "a"), fill(w, "b"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); !errors.Is(err, ErrExists) {
		t.Error("a file that appeared meanwhile:", err)
	}
	if err := w.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := New(path, layout(), Options{}).Create(); !errors.Is(err, ErrExists) {
		t.Error(err)
	}

	if err := os.Symlink(path, path+PartialSuffix); err != nil {
		t.Fatal(err)
	}
	if err := New(path, layout(), Options{Overwrite: true}).Create(); !errors.Is(err, syscall.ELOOP) {
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
	if err := New(path, huge, Options{}).Create(); !errors.Is(err, ErrNoSpace) && !errors.Is(err, ErrFileSize) ||
		!strings.Contains(err.Error(), fmt.Sprint(huge.Size)) {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	for cause, want := range map[error]error{
		syscall.ENOSPC: ErrNoSpace, syscall.EDQUOT: ErrNoSpace, syscall.EFBIG: ErrFileSize,
	} {
		w := create(t, path, Options{WriteAt: func(*os.File, []byte, int64) (int, error) { return 3, cause }})
		if err := fill(w, "a"); !errors.Is(err, want) || w.Done("a") ||
			!strings.Contains(err.Error(), "7 bytes") {
			t.Error(err)
		}
		if err := w.Abort(); err != nil {
			t.Error(err)
		}
	}
}

// TestUntouched: a Writer that was only made leaves the disk as it is, whatever it is asked for.
func TestUntouched(t *testing.T) {
	dir := t.TempDir()
	w := New(filepath.Join(dir, "f"), layout(), Options{})
	if err := errors.Join(w.Abort(), w.Suspend()); err != nil {
		t.Error(err)
	}
	if r, ok := w.Region("b"); !ok || r != (Region{"b", 32, 20}) {
		t.Error(r, ok)
	}
	if _, ok := w.Region("x"); ok || w.Finished() || !errors.Is(fill(w, "a"), ErrClosed) {
		t.Error("it writes, or is finished")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

// TestCheckSpace: files are refused that fit one by one, but not together, unless they take the place of their own
// unfinished ones.
func TestCheckSpace(t *testing.T) {
	dir := t.TempDir()
	probe, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	_, most := system.Space(probe)
	if most <= 0 {
		t.Skip("the file system does not tell its free space")
	}

	half := layout()
	half.Size = most/2 + most/8
	one := New(filepath.Join(dir, "one"), half, Options{})
	two := New(filepath.Join(dir, "two"), half, Options{})
	if err := CheckSpace(dir, []*Writer{one}); err != nil {
		t.Error(err)
	}
	if err := CheckSpace(dir, []*Writer{one, two}); !errors.Is(err, ErrNoSpace) ||
		!strings.Contains(err.Error(), fmt.Sprintf("(%d bytes)", 2*half.Size)) {
		t.Error(err)
	}
}
