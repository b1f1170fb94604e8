package lm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels/ref"
)

// TestFingerprint: the same model in a copy of the folder has the same fingerprint, one changed bit gives another.
func TestFingerprint(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../testdata/nano/base")); err != nil {
		t.Fatal(err)
	}

	print := func(dir string) string {
		m, err := Load(t.Context(), dir, ref.New(), Options{Stream: true})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()

		s, err := m.Fingerprint(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		return s
	}

	want := print("../testdata/nano/base")
	if got := print(dir); got != want {
		t.Errorf("a copy has fingerprint %s, the original %s", got, want)
	}

	path := filepath.Join(dir, "model.safetensors")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	data[len(data)-7] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := print(dir); got == want {
		t.Error("a changed bit leaves the fingerprint")
	}
}
