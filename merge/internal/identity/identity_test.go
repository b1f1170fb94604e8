package identity

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestOf: choices and files change the hash; what is not there, and what JSON cannot say, are told apart.
func TestOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	hash := func(choice any, paths ...string) string {
		t.Helper()
		h, err := Of(map[string]any{"choice": choice}, paths)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	none := hash(1)
	if hash(2) == none || hash(1, path) != none {
		t.Error("the hash does not follow the choices alone")
	}
	if err := os.WriteFile(path, []byte("1"), 0o666); err != nil {
		t.Fatal(err)
	}
	one := hash(1, path)
	if err := os.WriteFile(path, []byte("12"), 0o666); err != nil {
		t.Fatal(err)
	}
	if two := hash(1, path); one == none || two == one || hash(1, path) != two {
		t.Error("the hash does not follow the file")
	}
	if _, err := Of(map[string]any{"choice": math.NaN()}, nil); err == nil {
		t.Error("a choice without JSON is taken")
	}
	if _, err := Of(nil, []string{filepath.Join(path, "below")}); err == nil {
		t.Error("a file below a file is taken")
	}
}
