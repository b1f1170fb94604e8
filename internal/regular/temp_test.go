package regular

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestTempFolder: folders that nobody has locked any more are swept by the next one; those in use, of another kind, and links stay.
func TestTempFolder(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	dead, other := filepath.Join(temp, "kind-1"), filepath.Join(temp, "unlike-1")
	for _, dir := range []string{dead, other} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(other, filepath.Join(temp, "kind-link")); err != nil {
		t.Fatal(err)
	}
	one, endOne, err := TempFolder("kind-")
	if err != nil {
		t.Fatal(err)
	}
	two, endTwo, err := TempFolder("kind-")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{dead: false, other: true, one: true, two: true, filepath.Join(other, "file"): true, filepath.Join(temp, "kind-link"): true} {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) == want {
			t.Errorf("%s is there: %t", path, !want)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(one, "x"), nil, 0o600), endOne(), endTwo()); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "kind-*")); len(left) != 1 {
		t.Errorf("left: %q", left)
	}
}
