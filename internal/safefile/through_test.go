package safefile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/system"
	"github.com/modelcompress/compress/internal/system/systemtest"
)

// An output goes through links to the file that they lead to, there or not; what a process has open, pipes and
// devices are written into.
func TestTarget(t *testing.T) {
	systemtest.NeedsPipes(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}

	at := func(name string) string { return filepath.Join(dir, name) }
	err = errors.Join(
		os.MkdirAll(at("deep/inner"), 0o700), os.WriteFile(at("file"), []byte("text"), 0o600),
		systemtest.Pipe(at("pipe")),
		os.Symlink("file", at("link")), os.Symlink("link", at("second")), os.Symlink("nothing", at("lost")),
		os.Symlink("loop", at("loop")),
		os.Symlink("pipe", at("piped")), os.Symlink(os.DevNull, at("null")), os.Symlink("/proc/self/fd/1", at("out")),
		os.Symlink("deep/inner", at("folder")), os.Symlink("folder/../made", at("up")),
		os.Symlink("none/made", at("nowhere")),
	)
	if err != nil {
		t.Fatal(err)
	}

	own := fmt.Sprintf("/proc/%d/fd/1", os.Getpid())
	for name, want := range map[string]struct {
		to     string
		direct bool
	}{
		"file": {at("file"), false}, "new": {at("new"), false}, "link": {at("file"), false},
		"second": {at("file"), false},
		"lost":   {at("nothing"), false}, "pipe": {at("pipe"), true}, "piped": {at("pipe"), true},
		"null": {os.DevNull, true}, "out": {own, true},
		"up": {at("deep/made"), false}, "nowhere": {at("none/made"), false},
	} {
		to, direct, err := Target(at(name))
		if err != nil || direct != want.direct {
			t.Errorf("%s: %s, direct %t, %v", name, to, direct, err)
		}

		if name == "up" { // through a link the folder above is that of what it leads to
			if err := os.WriteFile(to, nil, 0o600); err != nil {
				t.Error(err)
			}
			to, err = filepath.EvalSymlinks(to)
		}
		if err != nil || to != want.to {
			t.Errorf("%s leads to %s, want %s; %v", name, to, want.to, err)
		}
	}

	if _, _, err := Target(at("loop")); !errors.Is(err, ErrLinks) {
		t.Error(err)
	}

	for _, name := range []string{"/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"} {
		if to, direct, err := Target(name); err != nil || !direct || to != own {
			t.Errorf("%s: %s, direct %t, %v", name, to, direct, err)
		}
	}
}

// A file that the process has open is written on from where it stands, and stays the file that it is.
func TestWriteInto(t *testing.T) {
	systemtest.NeedsLinks(t)
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	link := filepath.Join(dir, "link")
	if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), link); err != nil {
		t.Fatal(err)
	}

	write := func(text string) {
		if _, err := f.WriteString(text); err != nil {
			t.Error(err)
		}
	}

	write("before ")
	to, direct, err := Target(link)
	if err != nil || !direct {
		t.Fatal(to, direct, err)
	}

	if err := WriteInto(t.Context(), to, []byte("between")); err != nil {
		t.Error(err)
	}

	write(" after")
	if got, err := os.ReadFile(f.Name()); err != nil || string(got) != "before between after" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := os.Readlink(link); err != nil {
		t.Error(err)
	}
}

// A pipe without a reader is waited for as long as the work is not interrupted; with one it gets everything.
func TestWriteIntoPipe(t *testing.T) {
	systemtest.NeedsPipes(t)
	path := filepath.Join(t.TempDir(), "pipe")
	if err := systemtest.Pipe(path); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- WriteInto(ctx, path, []byte("x")) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	text := strings.Repeat("all of it", 1<<17) // more than a pipe holds
	go func() { ended <- WriteInto(t.Context(), path, []byte(text)) }()
	if got, err := os.ReadFile(path); err != nil || string(got) != text {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}

	// The reader stays, but reads no more.
	f, err := os.OpenFile(path, os.O_RDWR|system.NonBlock, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	ctx, cancel = context.WithCancel(t.Context())
	go func() { ended <- WriteInto(ctx, path, []byte(text)) }()
	if _, err := f.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}

	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
