package journal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

type head struct{ Name string }

type step struct{ N int }

func same(h head) error {
	if h.Name != "work" {
		return errors.New("other work")
	}
	return nil
}

// FuzzOpen: whatever a file holds, it is opened and continued or refused, and a refused one is left as it is
// but for a cut last line.
func FuzzOpen(f *testing.F) {
	path := filepath.Join(f.TempDir(), "seed")
	j, err := Open[head, step](path, false, head{"work"}, same)
	if err != nil {
		f.Fatal(err)
	}

	for n := range 3 {
		if err := j.Append(step{n}); err != nil {
			f.Fatal(err)
		}
	}

	if err := j.Close(); err != nil {
		f.Fatal(err)
	}

	text, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}

	for cut := range len(text) {
		f.Add(text[:cut])
	}

	f.Add(append(bytes.Clone(text), "garbage\n"...))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		path := filepath.Join(t.TempDir(), "j")
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}

		whole := text[:bytes.LastIndexByte(text, '\n')+1]
		j, err := Open[head, step](path, true, head{"work"}, same)
		if err != nil {
			if after, _ := os.ReadFile(path); !errors.Is(err, Err) || !bytes.Equal(after, whole) {
				t.Fatalf("%v; the file is now %q", err, after)
			}
			return
		}

		n := 0
		for s, ok := j.Next(); ok; s, ok = j.Next() {
			n++
			_ = s
		}

		if err := errors.Join(j.Append(step{99}), j.Sync(), j.Close()); err != nil {
			t.Fatal(err)
		}

		j, err = Open[head, step](path, true, head{"work"}, same)
		if err != nil || j.Left() != n+1 {
			t.Fatalf("%v: %d steps after adding one to %d", err, j.Left(), n)
		}

		j.Close()
	})
}

func TestExisting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open[head, step](path, false, head{"work"}, same); !errors.Is(err, Err) {
		t.Errorf("an existing file: %v", err)
	}
	if _, err := Open[head, step](filepath.Join(path, "below"), true, head{"work"}, same); err == nil {
		t.Error("a file inside a file")
	}

	var none *Journal[step]
	if _, ok := none.Next(); ok || errors.Join(none.Append(step{}), none.Sync(), none.Close()) != nil {
		t.Error("no journal isn't empty")
	}
}
