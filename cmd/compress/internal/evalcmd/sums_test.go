package evalcmd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// TestSweep: a finished run of which a file is damaged, or gone, is removed, so that it is done again; others stay.
func TestSweep(t *testing.T) {
	for _, harm := range []func(path string) error{
		func(path string) error { return os.WriteFile(path, []byte("damaged"), 0o666) },
		os.Remove,
		func(string) error { return nil },
	} {
		b := &batch{
			j: &cli.Job{Ctx: t.Context(), Quiet: true}, dir: t.TempDir(),
			plan: &Plan{Models: []PlanModel{{Name: "a"}, {Name: "b"}}, Tasks: []string{"x.yaml", "y.yaml"}},
		}

		for _, u := range []unit{{0, 0}, {1, 1}} {
			if err := errors.Join(os.MkdirAll(b.folder(u), 0o777),
				os.WriteFile(filepath.Join(b.folder(u), resultsFile), []byte("{}"), 0o666), b.note(u)); err != nil {
				t.Fatal(err)
			}
		}

		victim := filepath.Join(b.folder(unit{1, 1}), resultsFile)
		if err := harm(victim); err != nil {
			t.Fatal(err)
		}

		text, _ := os.ReadFile(victim)
		if err := b.sweep(); err != nil {
			t.Fatal(err)
		}

		_, err := os.Stat(b.folder(unit{1, 1}))
		if whole := string(text) == "{}"; whole != (err == nil) || !whole && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", text, err)
		}
		if _, err := os.Stat(b.folder(unit{0, 0})); err != nil {
			t.Error(err)
		}
	}
}
