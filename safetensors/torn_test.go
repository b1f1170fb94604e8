package safetensors

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestTornHeader: a process that was killed within the write of the header leaves a part of it; the file is
// then started anew, wherever it broke off.
func TestTornHeader(t *testing.T) {
	dir := t.TempDir()
	tensors := []Info{{Name: "a", DType: F32, Shape: []int64{2}}, {Name: "b", DType: F32, Shape: []int64{3}}}
	path := filepath.Join(dir, "x.safetensors")
	w, err := Create(path, tensors, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}

	if err := w.Suspend(); err != nil {
		t.Fatal(err)
	}

	whole, err := os.ReadFile(path + partialSuffix)
	if err != nil {
		t.Fatal(err)
	}

	head := len(whole) - 5*4
	for n := range head + 1 {
		torn := make([]byte, len(whole))
		copy(torn, whole[:n])
		if err := os.WriteFile(path+partialSuffix, torn, 0o600); err != nil {
			t.Fatal(err)
		}

		w, err := Reopen(path, tensors, nil, Options{})
		if err != nil {
			t.Fatalf("after %d of %d bytes: %v", n, head, err)
		}

		if err := w.MarkDone("a"); errors.Is(err, ErrNotResumed) == (n == head) {
			t.Errorf("after %d of %d bytes: %v", n, head, err)
		}
		if err := w.Suspend(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path + partialSuffix); err != nil || string(got) != string(whole) {
			t.Errorf("after %d of %d bytes: the file differs (%v)", n, head, err)
		}
	}
}
