package stage

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/safetensors"
)

// TestChangedSideFile: a file that became another one between the beginning of a job and its end is an error
// that names it, not a part of the output.
func TestChangedSideFile(t *testing.T) {
	source, out := t.TempDir(), t.TempDir()
	path := filepath.Join(source, "tokenizer.json")
	if err := errors.Join(os.WriteFile(path, []byte(`{"a": 1}`), 0o600),
		os.WriteFile(filepath.Join(source, "other.safetensors"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}

	files, err := sides(source, isRecord)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}

	f := &Folder{opts: Options{Source: source}, place: &Place{Dir: out}, side: files}
	if err := f.copySides(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(out, "tokenizer.json")); err != nil || string(text) != `{"a": 1}` {
		t.Errorf("%q %v", text, err)
	}
	// What is wrong with the copy is not told of the source.
	elsewhere := t.TempDir()
	if err := os.Mkdir(filepath.Join(elsewhere, "tokenizer.json"), 0o777); err != nil {
		t.Fatal(err)
	}
	full := &Folder{opts: Options{Source: source}, place: &Place{Dir: elsewhere}, side: files}
	for _, err := range []error{full.copySides(), CopySides(elsewhere, source, false)} {
		if err == nil || strings.Contains(err.Error(), source) || !strings.Contains(err.Error(), elsewhere) {
			t.Errorf("a folder in the place of the copy: %v", err)
		}
	}

	if err := os.Truncate(path, 3); err != nil {
		t.Fatal(err)
	}
	if err := f.copySides(); !errors.Is(err, ErrChanged) {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.copySides(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestDamagedBeside: a complete output of which a file beside the weights is cut, changed or gone is not taken
// for finished.
func TestDamagedBeside(t *testing.T) {
	source, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	for _, name := range []string{"config.json", "tokenizer.json"} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(`{"a": 1}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	o := Options{
		Source: source, Fingerprint: "job", Resume: true,
		Config: func(text []byte) []byte { return append(text, '\n') },
	}
	plan := func() Plan {
		return Plan{
			Tensors:  []safetensors.Info{{Name: "x", DType: safetensors.F32, Shape: []int64{1}}},
			Metadata: map[string]string{},
		}
	}

	f, err := Open(out, plan(), o)
	if err != nil {
		t.Fatal(err)
	}

	sums, err := f.Beside()
	if err != nil || len(sums) != 2 {
		t.Fatal(sums, err)
	}

	if err := errors.Join(f.Writer().WriteTensor("x", make([]byte, 4)), f.Commit([]string{"x"}),
		f.Finish()); err != nil {
		t.Fatal(err)
	}

	again := func() error {
		f, err := Open(out, plan(), o)
		if err == nil && !f.Complete() {
			t.Error("not complete, and no error")
		}
		return err
	}

	if err := errors.Join(again(), Intact(out, sums)); err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{"config.json", "tokenizer.json"} {
		path := filepath.Join(out, name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		for what, damage := range map[string]func() error{
			"cut":     func() error { return os.Truncate(path, 2) },
			"changed": func() error { return os.WriteFile(path, []byte(`{"a": 2}`), 0o600) },
			"gone":    func() error { return os.Remove(path) },
		} {
			if err := damage(); err != nil {
				t.Fatal(err)
			}

			for _, err := range []error{again(), Intact(out, sums)} {
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
					t.Errorf("%s %s: %v", name, what, err)
				}
			}

			if err := os.WriteFile(path, whole, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}

	if err := again(); err != nil {
		t.Error(err)
	}
}

// TestReplacedFiles: files have what the caller says instead of the source's, config.json changed on top of it, or are
// left out; and a complete output is held to that.
func TestReplacedFiles(t *testing.T) {
	source, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer.model", "merges.txt"} {
		if err := os.WriteFile(filepath.Join(source, name), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	o := Options{
		Source: source, Fingerprint: "job", Resume: true,
		Config: func(text []byte) []byte { return append(text, '\n') },
		Files:  map[string][]byte{"config.json": []byte("new"), "tokenizer.json": {}, "tokenizer.model": nil},
	}
	open := func() (*Folder, error) {
		return Open(out, Plan{
			Tensors:  []safetensors.Info{{Name: "x", DType: safetensors.F32, Shape: []int64{1}}},
			Metadata: map[string]string{},
		}, o)
	}

	f, err := open()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Writer().WriteTensor("x", make([]byte, 4)), f.Commit([]string{"x"}),
		f.Finish()); err != nil {
		t.Fatal(err)
	}

	for name, want := range map[string]string{"config.json": "new\n", "tokenizer.json": "", "merges.txt": "old"} {
		if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(out, "tokenizer.model")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}

	if f, err := open(); err != nil || !f.Complete() {
		t.Error(f, err)
	}
	if err := os.WriteFile(filepath.Join(out, "tokenizer.json"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
}

// A file that shrinks between its check and the end of the copy is no copy.
func TestShrinksWhileCopied(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokenizer.json")
	if err := os.WriteFile(path, []byte(`{"a": 1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	files, err := sides(dir, isRecord)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	root, err := weights.OpenFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()

	if err := asListed(root, files[0], func(io.Reader) error { return nil }); err != nil {
		t.Error(err)
	}
	shrink := func(io.Reader) error { return os.Truncate(path, 0) }
	if err := asListed(root, files[0], shrink); !errors.Is(err, ErrChanged) {
		t.Errorf("error %v", err)
	}
}
