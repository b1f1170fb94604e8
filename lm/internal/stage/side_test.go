package stage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestChangedSideFile: a file that became another one between the beginning of a job and its end is an error that names it, not a part of the output.
func TestChangedSideFile(t *testing.T) {
	source, out := t.TempDir(), t.TempDir()
	path := filepath.Join(source, "tokenizer.json")
	if err := errors.Join(os.WriteFile(path, []byte(`{"a": 1}`), 0o600), os.WriteFile(filepath.Join(source, "other"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	files, err := sideFiles(source)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	f := &Folder{opts: Options{Source: source}, stage: out, side: files}
	if err := f.copySide(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(out, "tokenizer.json")); err != nil || string(text) != `{"a": 1}` {
		t.Errorf("%q %v", text, err)
	}
	if err := os.Truncate(path, 3); err != nil {
		t.Fatal(err)
	}
	if err := f.copySide(); !errors.Is(err, ErrChanged) {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.copySide(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
