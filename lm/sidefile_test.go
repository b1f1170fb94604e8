package lm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels/ref"
)

func TestAddFile(t *testing.T) {
	m := load(t, "../testdata/nano/base", ref.New(), Options{})
	dir := filepath.Join(t.TempDir(), "out")
	s, err := m.NewSaver(dir, SaveOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{
		"", ".", "..", ".hidden", "a/b", "../x", "model.safetensors",
		"model.safetensors.index.json", "config.json", "tokenizer.json", "journal.jsonl",
	} {
		if err := s.AddFile(name, nil); !errors.Is(err, ErrFileName) {
			t.Errorf("%q: %v", name, err)
		}
	}

	for _, text := range []string{"first", "second"} {
		if err := s.AddFile("notes.json", []byte(text)); err != nil {
			t.Fatal(err)
		}
	}

	if err := s.Finish(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "notes.json")); err != nil || string(got) != "second" {
		t.Errorf("%q, %v", got, err)
	}
	if err := s.AddFile("late.json", nil); err != nil {
		t.Errorf("after the end: %v", err)
	}
}
