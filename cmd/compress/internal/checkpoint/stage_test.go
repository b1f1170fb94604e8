package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// fill makes a folder with one file that says which folder it was.
func fill(t *testing.T, dir, text string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCommitReplacesInOneStep(t *testing.T) {
	final := filepath.Join(t.TempDir(), "out")
	for _, text := range []string{"first", "second"} {
		s, err := Stage(final, Holds)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, s.Dir, text)
		if text == "second" && read(t, final) != "first" {
			t.Error("the old folder changed before the commit")
		}
		if err := s.Commit(); err != nil {
			t.Fatal(err)
		}
		if got := read(t, final); got != text {
			t.Errorf("the folder holds %q, want %q", got, text)
		}
		if _, err := os.Stat(s.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind: %s (%v)", s.Dir, err)
		}
	}
}

func TestSwapByTwo(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	fill(t, a, "new")
	if err := swapByTwo(a, b); err != nil || read(t, b) != "new" {
		t.Fatalf("to a free name: %v", err)
	}
	fill(t, a, "newer")
	if err := swapByTwo(a, b); err != nil || read(t, b) != "newer" || read(t, a) != "new" {
		t.Errorf("to a name in use: %v", err)
	}
}

func TestAbandonLeavesTheOld(t *testing.T) {
	final := filepath.Join(t.TempDir(), "out")
	fill(t, final, "old")
	s, err := Stage(final, Holds)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s.Dir, "unfinished")
	s.Abandon()
	if read(t, final) != "old" {
		t.Error("the old folder changed")
	}
}
