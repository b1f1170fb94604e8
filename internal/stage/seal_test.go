package stage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestSealed: whatever bit of a sealed value flips, it is noticed or does no harm.
func TestSealed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "v.json")
	want := map[string]float64{"a": 1.5, "b": -2}
	if err := WriteSealed(path, want); err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for bit := range 8 * len(text) {
		bad := append([]byte(nil), text...)
		bad[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, bad, 0o666); err != nil {
			t.Fatal(err)
		}

		var got map[string]float64
		err := ReadSealed(path, &got)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatalf("bit %d: %v", bit, err)
		}

		if err == nil && (len(got) != 2 || got["a"] != 1.5 || got["b"] != -2) {
			t.Fatalf("bit %d: %v", bit, got)
		}
	}

	if err := ReadSealed(path+"x", new(int)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestCheckSums: files that were changed or removed are noticed, at any depth; others that came later are not minded.
func TestCheckSums(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o777),
			os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}

	write("a", "1")
	write("b/c", "2")
	write(".hidden", "3")
	sums, err := Sums(dir)
	if err != nil || len(sums) != 2 {
		t.Fatal(sums, err)
	}

	write("later", "4")
	write(".hidden", "5")
	if err := CheckSums(dir, sums); err != nil {
		t.Error(err)
	}

	write("b/c", "6")
	if err := CheckSums(dir, sums); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
	if err := CheckSums(filepath.Join(dir, "none"), sums); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
}
