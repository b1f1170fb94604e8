package gguf

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// A Writer is what a safetensors.Sink is, so that either can be written to.
var _ safetensors.Sink = (*Writer)(nil)

// childEnv makes the test program a writer that waits to be killed.
const childEnv = "GGUF_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		if err := writeAndWait(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// sample is what the tests write: tensors of every kind of size, and metadata of every kind.
func sample() ([]Info, Metadata) {
	tensors := []Info{
		{Name: "odd", Type: I8, Shape: []int64{3}},
		{Name: "blocks", Type: Q4_K, Shape: []int64{2, 3, 256}},
		{Name: "empty", Type: F32, Shape: []int64{0, 5}},
		{Name: "scalar", Type: F32},
		{Name: "half", Type: F16, Shape: []int64{7, 9}},
	}
	metadata := Metadata{
		{"general.architecture", Of("llama")},
		{"a.uint8", Of(uint8(1))},
		{"a.int16", Of(int16(-2))},
		{"a.float64", Of(0.25)},
		{"a.strings", List([]string{"", "x", "ü"})},
		{"a.empty", List([]float32{})},
		{"a.bools", List([]bool{true, false})},
	}
	return tensors, metadata
}

// bytesOf is the data of a tensor: different for each, and for each byte.
func bytesOf(t Info) []byte {
	n, err := t.Type.ByteSize(t.Shape)
	if err != nil {
		panic(err)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + len(t.Name))
	}
	return b
}

func writeAndWait(path string) error {
	tensors, metadata := sample()
	w, err := Create(path, tensors, metadata, Options{})
	if err != nil {
		return err
	}
	for _, t := range tensors {
		if err := errors.Join(w.WriteTensor(t.Name, bytesOf(t)), w.Sync()); err != nil {
			return err
		}
		fmt.Println(t.Name)
	}
	_, err = os.Stdin.Read(make([]byte, 1))
	return err
}

// written is the sample as one file, written in pieces by several goroutines.
func written(t *testing.T, path string) []byte {
	t.Helper()
	tensors, metadata := sample()
	w, err := Create(path, tensors, metadata, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()

	var all sync.WaitGroup
	for _, info := range tensors {
		all.Go(func() {
			data := bytesOf(info)
			for at := len(data); at > 0; at -= min(at, 100) {
				from := max(0, at-100)
				if err := w.WriteAt(info.Name, data[from:at], int64(from)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()

	if err := errors.Join(w.Finish(), w.Finish()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(b)) != w.Size() || w.Path() != path {
		t.Errorf("%d bytes at %s, not %d", len(b), w.Path(), w.Size())
	}
	return b
}

// TestWriter: what is written is read, with the same metadata, tensors and bytes.
func TestWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	written(t, path)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	tensors, metadata := sample()
	if !slices.Equal(f.Metadata(), metadata) {
		t.Errorf("metadata %v", f.Metadata())
	}
	for _, want := range tensors {
		info, ok := f.Info(want.Name)
		data, err := f.Bytes(want.Name)
		if !ok || err != nil || info.Type != want.Type || !slices.Equal(info.Shape, want.Shape) ||
			info.Offset%32 != 0 || !bytes.Equal(data, bytesOf(want)) {
			t.Errorf("%+v: %+v, %v", want, info, err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// TestRewritten: gguf-py's file, read and written again, has the bytes it had.
func TestRewritten(t *testing.T) {
	const golden = "testdata/oracle.gguf"
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	f, err := OpenBytes(want)
	if err != nil {
		t.Fatal(err)
	}

	var tensors []Info
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		tensors = append(tensors, info)
	}
	path := filepath.Join(t.TempDir(), "again.gguf")
	w, err := Create(path, tensors, f.Metadata(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range tensors {
		data, err := f.Bytes(info.Name)
		if err := errors.Join(err, w.WriteTensor(info.Name, data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d (%v)", len(got), len(want), err)
	}
}

// TestKilled kills a writer with SIGKILL after some tensors and goes on with what it had noted; the result has the
// bytes of a run without interruption.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	want := written(t, filepath.Join(dir, "whole.gguf"))
	tensors, metadata := sample()

	for _, notes := range []int{1, 2, len(tensors)} {
		path := filepath.Join(dir, fmt.Sprint(notes, ".gguf"))
		noted := killAfter(t, path, notes)
		if _, err := os.Stat(path); err == nil {
			t.Fatal("a file that is not whole has its final name")
		}

		w, err := Reopen(path, tensors, metadata, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range noted {
			if err := w.MarkDone(name); err != nil {
				t.Fatal(err)
			}
		}
		for _, info := range tensors {
			if !w.Done(info.Name) {
				if err := w.WriteTensor(info.Name, bytesOf(info)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("killed after %d tensors: other bytes (%v)", notes, err)
		}
	}
}

// killAfter runs the child and kills it when it has noted n names.
func killAfter(t *testing.T, path string, n int) (noted []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe() // stays open, so that the child waits
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()

	if err := cmd.Start(); err != nil {
		t.Skip("no processes here: ", err)
	}
	for lines := bufio.NewScanner(out); len(noted) < n && lines.Scan(); {
		noted = append(noted, lines.Text())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if len(noted) != n {
		t.Fatalf("%d notes: %v", len(noted), noted)
	}
	return noted
}

// TestPlanFaults: what no reader would take is refused before anything is written.
func TestPlanFaults(t *testing.T) {
	one := func(i Info) []Info { return []Info{i} }
	for _, c := range []struct {
		name     string
		tensors  []Info
		metadata Metadata
		want     error
	}{
		{"name", one(Info{Name: strings.Repeat("n", 64)}), nil, ErrTensorName},
		{"no name", one(Info{}), nil, ErrTensorName},
		{"twice", []Info{{Name: "a"}, {Name: "a"}}, nil, ErrDuplicate},
		{"dimensions", one(Info{Name: "a", Shape: make([]int64, 5)}), nil, ErrDimensions},
		{"type", one(Info{Name: "a", Type: 5}), nil, ErrUnknownType},
		{"negative", one(Info{Name: "a", Shape: []int64{-1}}), nil, ErrShapeOverflow},
		{"overflow", one(Info{Name: "a", Shape: []int64{1 << 40, 1 << 40}}), nil, ErrShapeOverflow},
		{"blocks", one(Info{Name: "a", Type: Q6_K, Shape: []int64{1, 255}}), nil, ErrRowSize},
		{
			"sum",
			[]Info{{Name: "a", Type: I8, Shape: []int64{1 << 61}}, {Name: "b", Type: I8, Shape: []int64{1 << 62}}},
			nil, ErrTooLarge,
		},
		{"key", nil, Metadata{{"", Of("")}}, ErrKey},
		{"key twice", nil, Metadata{{"a", Of("")}, {"a", Of("")}}, ErrDuplicateKey},
		{"alignment", nil, Metadata{{alignmentKey, Of(uint32(3))}}, ErrAlignment},
	} {
		path := filepath.Join(t.TempDir(), "x")
		_, err := Create(path, c.tensors, c.metadata, Options{})
		checkFault(t, c.name, err, c.want, "")
		if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
			t.Errorf("%s: left behind: %v", c.name, left)
		}
	}
}

// TestUse: every wrong use has its error, and leaves what was there.
func TestUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	tensors, metadata := sample()
	written(t, path)
	_, err := Create(path, tensors, metadata, Options{})
	checkFault(t, "exists", err, ErrExists, path)

	w, err := Create(path, tensors, metadata, Options{Overwrite: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Create(path, tensors, metadata, Options{Overwrite: true})
	checkFault(t, "busy", err, ErrBusy, "")
	checkFault(t, "unknown", w.WriteTensor("x", nil), ErrUnknownTensor, `"x"`)
	checkFault(t, "size", w.WriteTensor("odd", nil), ErrSizeMismatch, "I8 [3] takes 3 bytes, given 0")
	checkFault(t, "range", w.WriteAt("odd", []byte{1}, 3), ErrRange, "")
	checkFault(t, "new", w.MarkDone("odd"), ErrNotResumed, "")
	checkFault(t, "incomplete", w.Finish(), ErrIncomplete,
		`tensor "odd": tensors not completely written: 4 of 5: "odd", "blocks", "scalar", "half"`)
	if got := w.Remaining(); !slices.Equal(got, []string{"odd", "blocks", "scalar", "half"}) {
		t.Error(got)
	}

	if err := w.Suspend(); err != nil {
		t.Fatal(err)
	}
	checkFault(t, "closed", w.WriteTensor("odd", make([]byte, 3)), ErrClosed, "")
	_, err = Reopen(path, tensors[1:], metadata, Options{Overwrite: true})
	checkFault(t, "layout", err, ErrLayoutChanged, "")
	w, err = Reopen(path, tensors, metadata, Options{Overwrite: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(); err != nil {
		t.Fatal(err)
	}
	_, err = Reopen(path, tensors, metadata, Options{Overwrite: true})
	checkFault(t, "nothing", err, ErrNoPartial, "")

	w, err = Reopen(path, tensors, metadata, Options{})
	if err != nil || len(w.Remaining()) > 0 || w.Finish() != nil || w.MarkDone("odd") != nil {
		t.Error("a finished file is not taken:", err)
	}
}
