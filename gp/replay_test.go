package gp

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

type workHead struct{ Name string }

type workStep struct{ N int }

func sameWork(h workHead) error {
	if h.Name != "work" {
		return errors.New("other work")
	}
	return nil
}

// FuzzReplay: whatever a file holds, it is opened and continued or refused, and a refused one is left as it is
// but for a cut last line, which may be gone.
func FuzzReplay(f *testing.F) {
	path := filepath.Join(f.TempDir(), "seed")
	j, err := openReplay[workHead, workStep](path, false, workHead{"work"}, sameWork)
	if err != nil {
		f.Fatal(err)
	}

	for n := range 3 {
		if err := j.Append(workStep{n}); err != nil {
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
		j, err := openReplay[workHead, workStep](path, true, workHead{"work"}, sameWork)
		if err != nil {
			after, _ := os.ReadFile(path)
			if !errors.Is(err, ErrJournal) || !bytes.Equal(after, whole) && !bytes.Equal(after, text) {
				t.Fatalf("%v; the file is now %q", err, after)
			}
			return
		}

		n := 0
		for s, ok := j.Next(); ok; s, ok = j.Next() {
			n++
			_ = s
		}

		if err := errors.Join(j.Append(workStep{99}), j.Sync(), j.Close()); err != nil {
			t.Fatal(err)
		}

		j, err = openReplay[workHead, workStep](path, true, workHead{"work"}, sameWork)
		if err != nil || j.Left() != n+1 {
			t.Fatalf("%v: %d steps after adding one to %d", err, j.Left(), n)
		}

		j.Close()
	})
}

func TestReplayOfWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openReplay[workHead, workStep](path, false, workHead{"work"}, sameWork); !errors.Is(err, ErrJournal) {
		t.Errorf("an existing file: %v", err)
	}
	below := filepath.Join(path, "below")
	if _, err := openReplay[workHead, workStep](below, true, workHead{"work"}, sameWork); err == nil {
		t.Error("a file inside a file")
	}

	var none *replay[workStep]
	if _, ok := none.Next(); ok || errors.Join(none.Append(workStep{}), none.Sync(), none.Close()) != nil {
		t.Error("no journal isn't empty")
	}
}
