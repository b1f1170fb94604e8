package fitness

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDamagedGradients: gradients that were kept and are damaged, or whose hash is, are made anew, which is
// said; whole ones are taken as they are.
func TestDamagedGradients(t *testing.T) {
	dir, s := t.TempDir(), subjectOf(t, "base", 2)
	var said []string
	run := func() {
		t.Helper()
		said = nil
		j, err := NewJudge(t.Context(), []Subject{s},
			Options{Settings: settings(), Windows: 6, Dir: dir, Note: func(text string) { said = append(said, text) }})
		if err != nil {
			t.Fatal(err)
		}

		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}

	run()
	if len(said) > 0 {
		t.Error(said)
	}

	files, err := filepath.Glob(filepath.Join(dir, "gradients-*"))
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}

	for _, path := range files[:2] { // a file, and its hash
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		bad := bytes.Clone(want)
		bad[len(bad)/2] ^= 4
		if err := os.WriteFile(path, bad, 0o666); err != nil {
			t.Fatal(err)
		}

		run()
		if len(said) != 1 || !strings.Contains(said[0], "made anew") {
			t.Errorf("%s: %q", path, said)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what it was: %v", path, err)
		}
	}

	run()
	if len(said) > 0 {
		t.Error(said)
	}
}
