package safefile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

// A file is replaced as a whole; what a killed process has left under the hidden name is taken up, and nothing
// stays beside the file.
func TestWriteFile(t *testing.T) {
	systemtest.NeedsLinks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(Unfinished(path), []byte("much more than the new text"), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, text := range []string{"first", "second, longer", ""} {
		if err := WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q, %v; want %q", got, err, text)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("%v %v", entries, err)
		}
	}

	if err := WriteFile(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "folder"), nil, 0o600); err == nil {
		t.Error("a folder is replaced by a file")
	}
	if _, err := os.Lstat(Unfinished(filepath.Join(dir, "folder"))); !errors.Is(err, fs.ErrNotExist) {
		t.Error("something is left beside a file that could not be written", err)
	}

	for name, want := range map[string]string{
		filepath.Base(Unfinished(path)): "file", "file.new": "file.new",
		".file": ".file",
	} {
		if got := Finished(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}

	// A link in the place of the hidden name is not followed.
	if err := os.Symlink(path, Unfinished(filepath.Join(dir, "other"))); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "other"), []byte("x"), 0o600); err == nil {
		t.Error("a link is followed")
	}
}

// Writers of one file at once never mix.
func TestWritersAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var wg sync.WaitGroup
	for i := range 8 {
		text := bytes.Repeat([]byte{byte('a' + i)}, 1000+i)
		wg.Go(func() {
			for range 20 {
				if err := WriteFile(path, text, 0o600); err != nil {
					t.Error(err)
				}
				got, err := os.ReadFile(path)
				if err != nil || len(got) != 1000+int(got[0]-'a') || bytes.Count(got, got[:1]) != len(got) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			}
		})
	}

	wg.Wait()
}
