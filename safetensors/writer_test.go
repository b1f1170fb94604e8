package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

// listing names the files of a folder.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}

	return names
}

func TestCreateFaults(t *testing.T) {
	u8 := func(name string, shape ...int64) Info { return Info{Name: name, DType: U8, Shape: shape} }
	for _, c := range []struct {
		tensors []Info
		meta    map[string]string
		want    error
	}{
		{[]Info{u8("a"), u8("b"), u8("a")}, nil, ErrDuplicateKey},
		{[]Info{u8(metadataKey)}, nil, ErrReservedName},
		{[]Info{u8("\xff")}, nil, ErrHeaderNotUTF8},
		{nil, map[string]string{"\xff": ""}, ErrHeaderNotUTF8},
		{nil, map[string]string{"": "\xff"}, ErrHeaderNotUTF8},
		{[]Info{{Name: "a"}}, nil, ErrUnknownDType},
		{[]Info{u8("a", -1)}, nil, ErrShapeOverflow},
		{[]Info{u8("a", 1<<59), u8("b", 1<<59), u8("c", 1<<62)}, nil, ErrShapeOverflow},
		{slices.Repeat([]Info{u8("a", 1<<59)}, 1), nil, nil}, // ErrNoSpace or ErrFileSize, as the file system has it
		{[]Info{{Name: "a", DType: F6_E2M3, Shape: []int64{2}}}, nil, ErrNotByteAligned},
		{nil, map[string]string{"": strings.Repeat("x", maxHeaderSize)}, ErrHeaderTooLarge},
	} {
		dir := t.TempDir()
		_, err := Create(filepath.Join(dir, "x"), c.tensors, c.meta, Options{})
		if c.want == nil && errors.Is(err, ErrFileSize) {
			c.want = ErrFileSize
		} else if c.want == nil {
			c.want = ErrNoSpace
		}
		if !errors.Is(err, c.want) || strings.Count(err.Error(), dir) != 1 ||
			strings.Contains(err.Error(), "safetensors: ") {
			t.Errorf("got %v, want %v", err, c.want)
		}

		if left := listing(t, dir); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}

	if _, err := Create(filepath.Join(t.TempDir(), "none", "x"), nil, nil, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestDataRange refuses layouts that leave the range of file sizes.
func TestDataRange(t *testing.T) {
	var tensors []Info
	for i := range 17 {
		tensors = append(tensors, Info{Name: fmt.Sprint(i), DType: U8, Shape: []int64{1<<60 - 1}})
	}
	if _, err := plan(tensors, nil, OrderGiven); !errors.Is(err, ErrOffsets) {
		t.Errorf("got %v", err)
	}
}

func TestWriteFaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	w, err := Create(path, mixed(), nil, Options{})
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		err, want error
	}{
		{w.WriteTensor("none", nil), ErrUnknownTensor},
		{w.WriteTensor("scalar", make([]byte, 3)), ErrSizeMismatch},
		{w.WriteTensor("scalar", make([]byte, 5)), ErrSizeMismatch},
		{w.WriteAt("none", nil, 0), ErrUnknownTensor},
		{w.WriteAt("scalar", make([]byte, 2), 3), ErrRange},
		{w.WriteAt("scalar", make([]byte, 5), 0), ErrRange},
		{w.WriteAt("scalar", nil, -1), ErrRange},
		{w.MarkDone("none"), ErrUnknownTensor},
		{w.MarkDone("scalar"), ErrNotResumed},
		{w.Finish(), ErrIncomplete},
		{Copy(w, "scalar", mustOpen(t, "testdata/all-dtypes.safetensors"), "a.F32", nil), ErrRange},
		{Copy(w, "scalar", mustOpen(t, "testdata/all-dtypes.safetensors"), "none", nil), ErrUnknownTensor},
	} {
		if !errors.Is(c.err, c.want) || !strings.Contains(c.err.Error(), path) && c.want != ErrUnknownTensor {
			t.Errorf("got %v, want %v", c.err, c.want)
		}
	}

	if _, err := Create(path, mixed(), nil, Options{}); !errors.Is(err, ErrBusy) {
		t.Errorf("second writer: %v", err)
	}
	if _, err := Reopen(path, mixed(), nil, Options{}); !errors.Is(err, ErrBusy) {
		t.Errorf("second writer: %v", err)
	}
	if err := errors.Join(w.Abort(), w.Abort(), w.Suspend()); err != nil {
		t.Error(err)
	}

	for _, err := range []error{w.WriteAt("scalar", []byte{1}, 0), w.Sync(), w.Finish()} {
		if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrIncomplete) {
			t.Errorf("after Abort: %v", err)
		}
	}

	if left := listing(t, filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestIncomplete names what is missing and lets writing go on.
func TestIncomplete(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	tensors := []Info{
		{Name: "a", DType: U8, Shape: []int64{4}},
		{Name: "b", DType: U8, Shape: []int64{4}},
		{Name: "z", DType: U8, Shape: []int64{0}},
	}
	w, err := Create(path, tensors, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()

	data := dataOf(tensors[0])
	if err := errors.Join(w.WriteTensor("b", dataOf(tensors[1])), w.WriteAt("a", data[2:], 2)); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), `1 of 3: "a"`) {
		t.Errorf("got %v", err)
	}
	if !slices.Equal(w.Remaining(), []string{"a"}) || w.Done("a") || !w.Done("b") || !w.Done("z") || w.Done("none") {
		t.Errorf("remaining %v", w.Remaining())
	}
	if !slices.Equal(listing(t, filepath.Dir(path)), []string{"x.safetensors.partial"}) {
		t.Errorf("visible early: %v", listing(t, filepath.Dir(path)))
	}

	if err := errors.Join(w.WriteAt("a", data[:3], 0), w.Finish(), w.Finish(), w.Abort(), w.Sync(),
		w.MarkDone("a")); err != nil {
		t.Fatal(err)
	}

	checkAll(t, mustOpen(t, path), tensors)
}

// TestExisting replaces a file only when told to, and keeps the old one until the end.
func TestExisting(t *testing.T) {
	dir := folder(t, map[string]string{"x": "old"})
	path := filepath.Join(dir, "x")
	if _, err := Create(path, nil, nil, Options{}); !errors.Is(err, ErrExists) {
		t.Errorf("got %v", err)
	}

	w, err := Create(path, mixed(), nil, Options{Overwrite: true})
	if err != nil {
		t.Fatal(err)
	}

	writeAll(t, w, mixed(), 1, 100)
	if b, _ := os.ReadFile(path); string(b) != "old" {
		t.Error("replaced early")
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	checkAll(t, mustOpen(t, path), mixed())

	late := filepath.Join(dir, "late")
	w, err = Create(late, nil, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(late, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); !errors.Is(err, ErrExists) {
		t.Errorf("got %v", err)
	}
	if err := w.Suspend(); err != nil {
		t.Fatal(err)
	}
	if _, err := Reopen(late, nil, nil, Options{}); !errors.Is(err, ErrExists) {
		t.Errorf("resumed beside a finished file: %v", err)
	}
	if b, _ := os.ReadFile(late); string(b) != "theirs" {
		t.Error("replaced the file of another")
	}
}

// TestPartialIsLink does not write through a planted link.
func TestPartialIsLink(t *testing.T) {
	systemtest.NeedsLinks(t)
	dir := folder(t, map[string]string{"victim": "precious"})
	if err := os.Symlink("victim", filepath.Join(dir, "x"+partialSuffix)); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	if _, err := Create(filepath.Join(dir, "x"), nil, nil, Options{}); err == nil {
		t.Error("wrote through a link")
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "victim")); string(b) != "precious" {
		t.Errorf("victim is now %q", b)
	}
}

// TestResume stops in the middle and goes on to the same bytes.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	want := write(t, filepath.Join(dir, "whole"), large(), OrderGiven, 1, 1<<30)
	meta := mustOpen(t, filepath.Join(dir, "whole")).Metadata()
	path := filepath.Join(dir, "x")
	w, err := Create(path, large(), meta, Options{})
	if err != nil {
		t.Fatal(err)
	}

	writeAll(t, w, large()[:20], 2, 1000)
	if err := errors.Join(w.Sync(), w.Suspend(), w.Suspend(), w.Abort()); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		tensors []Info
		meta    map[string]string
	}{{large()[1:], meta}, {large(), nil}, {append(large()[1:], large()[0]), meta}} {
		if _, err := Reopen(path, c.tensors, c.meta, Options{}); !errors.Is(err, ErrLayoutChanged) {
			t.Errorf("other layout: %v", err)
		}
	}

	w, err = Reopen(path, large(), meta, Options{})
	if err != nil {
		t.Fatal(err)
	}

	for _, info := range large()[:20] {
		if err := w.MarkDone(info.Name); err != nil {
			t.Fatal(err)
		}
	}

	if len(w.Remaining()) != 20 {
		t.Errorf("%d remain", len(w.Remaining()))
	}

	writeAll(t, w, large()[20:], 1, 1<<30)
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other bytes (%v)", err)
	}

	w, err = Reopen(path, large(), meta, Options{})
	if err != nil || len(w.Remaining()) > 0 || w.Finish() != nil {
		t.Errorf("finished file: %v", err)
	}

	if _, err := Reopen(path, large(), nil, Options{}); !errors.Is(err, ErrLayoutChanged) {
		t.Errorf("finished file of another layout: %v", err)
	}

	for _, overwrite := range []bool{false, true} {
		if _, err := Reopen(filepath.Join(dir, "none"), large(), meta, Options{Overwrite: overwrite}); !errors.Is(err,
			ErrNoPartial) {
			t.Errorf("nothing there: %v", err)
		}
	}
}

// TestResumeUnstarted takes a file whose header was never written for a fresh one.
func TestResumeUnstarted(t *testing.T) {
	for _, content := range []string{"", "\x00\x00\x00", strings.Repeat("\x00", 100_000)} {
		path := filepath.Join(folder(t, map[string]string{"x.partial": content}), "x")
		w, err := Reopen(path, mixed(), nil, Options{})
		if err != nil {
			t.Fatal(err)
		}

		if err := w.MarkDone("scalar"); !errors.Is(err, ErrNotResumed) {
			t.Errorf("got %v", err)
		}

		writeAll(t, w, mixed(), 1, 100)
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}

		checkAll(t, mustOpen(t, path), mixed())
	}
}

// TestResumeDir resumes a folder from every state that CreateDir, writing and Finish pass through.
func TestResumeDir(t *testing.T) {
	opts := DirOptions{MaxShardSize: 1_000_000}
	whole := filepath.Join(t.TempDir(), "whole")
	w, err := CreateDir(whole, large(), nil, opts)
	if err != nil {
		t.Fatal(err)
	}

	writeAll(t, w, large(), 1, 1<<30)
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	names := listing(t, whole)
	shards := w.Shards()
	for state := range 2 * len(names) {
		dir := filepath.Join(t.TempDir(), "m")
		w, err := CreateDir(dir, large(), nil, opts)
		if err != nil {
			t.Fatal(err)
		}

		writeAll(t, w, large(), 1, 1<<30)
		if err := w.Suspend(); err != nil {
			t.Fatal(err)
		}

		killed(t, dir, shards, state)
		resumeAndCompare(t, dir, whole, opts, state)
	}
}

// killed puts a suspended folder into the state of one that was killed while its files were made
// (the last of them missing), or while Finish renamed them.
func killed(t *testing.T, dir string, shards []string, state int) {
	var err error
	if state < len(shards) {
		for _, shard := range shards[state+1:] {
			err = errors.Join(err, os.Remove(filepath.Join(dir, shard+partialSuffix)))
		}
	} else {
		for _, shard := range shards[:min(state-len(shards), len(shards))] {
			err = errors.Join(err, os.Rename(filepath.Join(dir, shard+partialSuffix), filepath.Join(dir, shard)))
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, IndexName+partialSuffix), []byte("{"), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func resumeAndCompare(t *testing.T, dir, whole string, opts DirOptions, state int) {
	t.Helper()
	w, err := ReopenDir(dir, large(), nil, opts)
	if err != nil {
		t.Fatalf("state %d: %v", state, err)
	}

	for _, info := range large() {
		if err := w.MarkDone(info.Name); err != nil && !errors.Is(err, ErrNotResumed) {
			t.Fatal(err)
		}
	}

	for _, info := range large() {
		if !w.Done(info.Name) {
			if err := w.WriteTensor(info.Name, dataOf(info)); err != nil {
				t.Fatal(err)
			}
		}
	}

	if err := errors.Join(w.Sync(), w.Finish()); err != nil {
		t.Fatalf("state %d: %v", state, err)
	}

	names := listing(t, whole)
	if !slices.Equal(listing(t, dir), names) {
		t.Fatalf("state %d: %v", state, listing(t, dir))
	}

	for _, name := range names {
		a, _ := os.ReadFile(filepath.Join(dir, name))
		b, _ := os.ReadFile(filepath.Join(whole, name))
		if !bytes.Equal(a, b) {
			t.Errorf("state %d: %s has other bytes", state, name)
		}
	}

	again, err := ReopenDir(dir, large(), nil, opts)
	if err != nil || again.Abort() != nil || again.Finish() != nil || len(listing(t, dir)) != len(names) {
		t.Errorf("state %d: a finished folder does not stay: %v", state, err)
	}
}

// TestAbortDir removes everything, even what a failing Finish had renamed.
func TestAbortDir(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "m")
	w, err := CreateDir(dir, large(), nil, DirOptions{MaxShardSize: 1_000_000})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := CreateDir(dir, large(), nil, DirOptions{MaxShardSize: 1_000_000}); !errors.Is(err, ErrBusy) {
		t.Errorf("second writer: %v", err)
	}
	if err := w.Finish(); !errors.Is(err, ErrIncomplete) {
		t.Errorf("got %v", err)
	}

	writeAll(t, w, large(), 1, 1<<30)
	obstacle := filepath.Join(dir, w.Shards()[2])
	if err := os.WriteFile(obstacle, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); !errors.Is(err, ErrExists) {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(); err != nil || len(listing(t, parent)) > 0 {
		t.Errorf("%v; left behind: %v", err, listing(t, parent))
	}
	if err := w.Finish(); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestDirWriterLooksUp(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	w, err := CreateDir(dir, mixed(), nil, DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()

	for _, err := range []error{w.WriteTensor("none", nil), w.WriteAt("none", nil, 0), w.MarkDone("none")} {
		if !errors.Is(err, ErrUnknownTensor) {
			t.Errorf("got %v", err)
		}
	}

	if w.ShardOf("scalar") != SingleName || w.ShardOf("none") != "" || w.Done("none") || w.Path() != dir {
		t.Error("wrong answers")
	}

	if err := w.WriteTensor("scalar", make([]byte, 4)); err != nil || !w.Done("scalar") ||
		len(w.Remaining()) != len(mixed())-2 {
		t.Errorf("%v, remaining %v", err, w.Remaining())
	}
}
