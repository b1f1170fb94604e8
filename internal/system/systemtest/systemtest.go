// Package systemtest has what tests ask of an operating system to make bad days: pipes in the place of files, limits,
// deaths.
package systemtest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Pipe makes a named pipe. The error wraps [errors.ErrUnsupported] where pipes have no names in folders.
func Pipe(path string) error { return pipe(path) }

// Kill ends a process without a chance to clean up, this one too.
func Kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// LimitFiles limits the size of the files that this process may write, for good. The error wraps
// [errors.ErrUnsupported] where a system has no such limit.
func LimitFiles(size uint64) error { return limitFiles(size) }

// MostFiles is how many files this process may have open, if that is limited.
func MostFiles() (n uint64, limited bool) { return mostFiles() }

// NeedsPipes skips a test where pipes have no names in folders.
func NeedsPipes(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("pipes have no names in folders here")
	}
}

// NeedsLinks skips a test where links cannot be made, or lead nowhere.
func NeedsLinks(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Skipf("links cannot be made here: %v", err)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Skipf("links that are made are none here: %v", err)
	}
}

// NeedsCuts skips a test where a mapped file cannot be cut off.
func NeedsCuts(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("a mapped file cannot be cut off here")
	}
}
