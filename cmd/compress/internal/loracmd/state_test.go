package loracmd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/checkpoint"
)

// TestClaim: one run at a time has the folder of a state. It stays when something is in it, and is free again
// after release.
func TestClaim(t *testing.T) {
	dir := state(filepath.Join(t.TempDir(), "new", "out") + "/")
	if filepath.Base(dir) != ".out.training" {
		t.Fatal(dir)
	}

	release, err := claim(dir)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := claim(dir); !errors.Is(err, checkpoint.ErrBusy) {
		t.Error(err)
	}

	release()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("an empty folder is left", err)
	}
	if release, err = claim(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "state-00000001.safetensors"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	release()
	if release, err = claim(dir); err != nil {
		t.Fatal(err)
	}

	release()
	if _, err := os.Stat(filepath.Join(dir, "state-00000001.safetensors")); err != nil {
		t.Error(err)
	}
}
