package safefile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

// Pipes, sockets and devices are refused at once, by name and through links; files are read up to their limit.
func TestKinds(t *testing.T) {
	systemtest.NeedsPipes(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(systemtest.Pipe(at("pipe")), os.Symlink("pipe", at("link")),
		os.WriteFile(at("file"), []byte("text"), 0o600)); err != nil {
		t.Fatal(err)
	}

	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	for name, kind := range map[string]string{"pipe": "pipe", "link": "pipe", "socket": "socket"} {
		_, err := ReadFile(at(name), 10)
		_, below := ReadIn(dir, name, 10)
		for _, err := range []error{err, below} {
			if !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), kind) ||
				!strings.Contains(err.Error(), at(name)) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}

	if _, err := ReadFile(t.TempDir(), 10); !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), "folder") {
		t.Error(err)
	}
	if _, err := ReadFile(os.DevNull, 10); !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), "device") {
		t.Errorf("device: %v", err)
	}

	for _, read := range []func(limit int64) ([]byte, error){
		func(limit int64) ([]byte, error) { return ReadFile(at("file"), limit) },
		func(limit int64) ([]byte, error) { return ReadIn(dir, "file", limit) },
	} {
		if text, err := read(4); string(text) != "text" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
		if _, err := read(3); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a longer file: %v", err)
		}
	}

	if _, err := ReadIn(dir, "none", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}

	if f, err := Open(dir); err != nil {
		t.Errorf("folder: %v", err)
	} else if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// An output goes to the folder that a link names; links to nothing and other names stay as they are.
func TestPlace(t *testing.T) {
	systemtest.NeedsLinks(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}

	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(at("folder"), 0o700), os.Symlink("folder", at("link")),
		os.Symlink("link", at("second")), os.Symlink("nothing", at("lost"))); err != nil {
		t.Fatal(err)
	}

	for name, want := range map[string]string{
		"folder": "folder", "link": "folder", "second": "folder", "lost": "lost",
		"new": "new",
	} {
		if got := Place(at(name)); got != at(want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}
