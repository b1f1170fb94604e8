package stage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/system/systemtest"
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

func TestPublishReplacesInOneStep(t *testing.T) {
	final := filepath.Join(t.TempDir(), "out")
	for _, text := range []string{"first", "second"} {
		s, err := Begin(final, Replaceable(""))
		if err != nil {
			t.Fatal(err)
		}

		fill(t, s.Dir, text)
		if text == "second" && read(t, final) != "first" {
			t.Error("the old folder changed before the commit")
		}
		if err := s.Publish(); err != nil {
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

func TestExchangeByTwo(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	fill(t, a, "new")
	if err := exchangeByTwo(a, b); err != nil || read(t, b) != "new" {
		t.Fatalf("to a free name: %v", err)
	}

	fill(t, a, "newer")
	if err := exchangeByTwo(a, b); err != nil || read(t, b) != "newer" || read(t, a) != "new" {
		t.Errorf("to a name in use: %v", err)
	}
}

func TestAbandonLeavesTheOld(t *testing.T) {
	final := filepath.Join(t.TempDir(), "out")
	fill(t, final, "old")
	s, err := Begin(final, Replaceable(""))
	if err != nil {
		t.Fatal(err)
	}

	fill(t, s.Dir, "unfinished")
	if err := s.Abandon(); err != nil {
		t.Error(err)
	}
	if read(t, final) != "old" {
		t.Error("the old folder changed")
	}
}

// TestOneRunAtATime: a second run of the same output is refused until the first has ended.
func TestOneRunAtATime(t *testing.T) {
	final := filepath.Join(t.TempDir(), "out")
	first, err := Begin(final, nil)
	if err != nil {
		t.Fatal(err)
	}

	fill(t, first.Dir, "first")
	if _, err := Begin(final, nil); !errors.Is(err, ErrBusy) {
		t.Errorf("error %v, want ErrBusy", err)
	}
	if err := first.Publish(); err != nil {
		t.Fatal(err)
	}
	if _, err := Begin(final, nil); !errors.Is(err, ErrExists) {
		t.Errorf("error %v, want ErrExists", err)
	}

	second, err := Begin(final, Replaceable(""))
	if err != nil {
		t.Fatal(err)
	}

	if err := second.Abandon(); err != nil {
		t.Error(err)
	}
	if read(t, final) != "first" {
		t.Error("the folder changed")
	}
}

// TestPublishLooksAgain: what appeared under the final name meanwhile is not replaced.
func TestPublishLooksAgain(t *testing.T) {
	final := filepath.Join(t.TempDir(), "out")
	s, err := Begin(final, nil)
	if err != nil {
		t.Fatal(err)
	}

	fill(t, s.Dir, "mine")
	fill(t, final, "other")
	if err := s.Publish(); !errors.Is(err, ErrExists) || read(t, final) != "other" {
		t.Errorf("error %v, want ErrExists", err)
	}
}

// TestLinkInTheWay: a link under the hidden name is not followed.
func TestLinkInTheWay(t *testing.T) {
	systemtest.NeedsLinks(t)
	dir := t.TempDir()
	fill(t, filepath.Join(dir, "precious"), "precious")
	if err := os.Symlink("precious", filepath.Join(dir, ".out.partial")); err != nil {
		t.Skip(err)
	}
	if _, err := Begin(filepath.Join(dir, "out"), nil); !errors.Is(err, ErrTarget) {
		t.Errorf("error %v, want ErrTarget", err)
	}
	if read(t, filepath.Join(dir, "precious")) != "precious" {
		t.Error("the linked folder changed")
	}
}

func TestReplaceable(t *testing.T) {
	source := t.TempDir()
	files := func(names ...string) string {
		dir := t.TempDir()
		for _, name := range names {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("text of "+filepath.Base(name)), 0o666); err != nil {
				t.Fatal(err)
			}
		}

		return dir
	}

	if err := os.WriteFile(filepath.Join(source, "README.md"), []byte("text of README.md"), 0o666); err != nil {
		t.Fatal(err)
	}

	carded := files("model.safetensors")
	mine := (&card.Card{Title: "Model"}).Bytes()
	if err := os.WriteFile(filepath.Join(carded, card.Name), mine, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := Replaceable("")(carded); err != nil || !OwnCard(carded) {
		t.Errorf("a card that nobody has changed: %v", err)
	}
	if err := os.WriteFile(filepath.Join(carded, card.Name), append(mine, "And I say:\n"...), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := Replaceable(source)(carded); !errors.Is(err, ErrTarget) || OwnCard(carded) {
		t.Errorf("a card that a user has added to: %v", err)
	}

	for _, good := range [][]string{
		{"model.safetensors"},
		{
			"model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json", "tokenizer_config.json",
			"LICENSE.txt",
		},
		{"model.safetensors", "README.md"}, // as in the source
	} {
		if err := Replaceable(source)(files(good...)); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}

	for _, bad := range [][]string{
		{"config.json"},
		{"model.safetensors", "NOTES.txt"},
		{"model.safetensors", ".git/config"},
		{"model.safetensors", "adapter.safetensors"},
		{"model.safetensors", "config.json", "pytorch_model.bin"},
		{"model.safetensors", "report.json"}, // not one of ours
		{"a", "b", "c", "d", "e", "f", "g"},
	} {
		if err := Replaceable(source)(files(bad...)); !errors.Is(err, ErrTarget) {
			t.Errorf("%v: error %v, want ErrTarget", bad, err)
		}
	}
}
