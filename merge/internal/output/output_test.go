package output

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

var layout = []safetensors.Info{
	{Name: "a", DType: safetensors.U8, Shape: []int64{300}},
	{Name: "b", DType: safetensors.U8, Shape: []int64{5}},
}

func nothing(string) error { return nil }

// fill writes a tensor in two parts.
func fill(t *testing.T, f *Folder, name string, n int) {
	t.Helper()
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * 7)
	}
	if err := errors.Join(f.WriteAt(name, data[n/2:], int64(n/2)), f.WriteAt(name, data[:n/2], 0),
		f.Written(name)); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, dir string, resume bool) *Folder {
	t.Helper()
	f, err := Open(dir, Options{Job: "job", Tensors: layout, Resume: resume, Every: 1})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestVerify: a byte that changes between writing and reading back is seen, and the output does not get its name.
func TestVerify(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	f := start(t, dir, false)
	fill(t, f, "a", 300)
	fill(t, f, "b", 5)
	path := filepath.Join(f.stage, "model.safetensors.partial")
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	if _, err := file.WriteAt([]byte{0xee}, st.Size()-100); err != nil {
		t.Fatal(err)
	}
	if err := f.Finish(nothing); !errors.Is(err, ErrVerify) {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the output has its name")
	}
	if err := f.Abort(); err != nil {
		t.Error(err)
	}
}

// TestResume: a torn last line of the journal counts for nothing, what was entered is there, and two processes
// do not write one output.
func TestResume(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	f := start(t, dir, false)
	fill(t, f, "a", 300)
	if _, err := Open(dir, Options{Job: "job", Tensors: layout, Resume: true}); !errors.Is(err, ErrBusy) {
		t.Errorf("second writer: %v", err)
	}
	if err := f.Suspend(); err != nil {
		t.Fatal(err)
	}

	journal, err := os.OpenFile(filepath.Join(f.stage, journalName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := journal.WriteString(`{"done":{"b":[{"o":0`); err != nil {
		t.Fatal(err)
	}

	journal.Close()
	if _, err := Open(dir, Options{Job: "other", Tensors: layout, Resume: true}); !errors.Is(err, ErrOtherJob) {
		t.Errorf("another job: %v", err)
	}

	f = start(t, dir, true)
	if !f.Done("a") || f.Done("b") {
		t.Errorf("done: a %v, b %v", f.Done("a"), f.Done("b"))
	}

	fill(t, f, "b", 5)
	manifest := func(dir string) error { return WriteFile(filepath.Join(dir, ManifestName), []byte(`{"job":"job"}`)) }
	if err := f.Finish(manifest); err != nil {
		t.Fatal(err)
	}
	if f = start(t, dir, true); !f.Complete() {
		t.Error("a finished output is not complete")
	}
	if _, err := Open(dir, Options{Job: "job", Tensors: layout}); !errors.Is(err, ErrExists) {
		t.Errorf("existing output: %v", err)
	}

	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}
