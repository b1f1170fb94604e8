package editeval

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDamaged: what is damaged after it was finished is made anew, which is said; what is whole stays as it is.
func TestDamaged(t *testing.T) {
	m := nanoModel(t)
	p := small([]int{1, 2}, Editor{Method: "grace", HParams: quick})
	p.Tasks[0].Limit = 2
	want, dir := t.TempDir(), t.TempDir()
	study(t, m, p, want)
	var said []string
	run := func(stop int) {
		t.Helper()
		said = nil
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		_, err := Run(ctx, m, p, Options{Dir: dir, Note: func(s string) {
			said = append(said,
				s)
		}, Progress: func(done, _ int) {
			if stop > 0 && done >= stop {
				cancel()
			}
		}})
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}

	flipped := 0
	for _, stop := range []int{perCheckpoint + 1, 0} { // in the middle of the sequence, and at its end
		run(stop)

		for _, path := range results(t, dir) {
			// it is read where a plan has more counts, and has hashes of its own
			if filepath.Base(path) == keptJournal {
				continue
			}

			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}

			text[len(text)/2] ^= 1
			if err := os.WriteFile(path, text, 0o666); err != nil {
				t.Fatal(err)
			}

			flipped++
			run(stop)
			if len(said) == 0 || !strings.Contains(strings.Join(said, " "), "is made anew") {
				t.Errorf("%s: %q", path, said)
			}
		}

		run(0)
		if len(said) > 0 {
			t.Errorf("of whole files it is said: %q", said)
		}

		same(t, "damaged and made anew", files(t, want), files(t, dir))
	}

	if flipped < 8 {
		t.Errorf("only %d files", flipped)
	}
}

// results are the files of parts of a study.
func results(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch name, _ := filepath.Rel(dir, path); {
		case err != nil, d.IsDir():
		case strings.HasPrefix(name, baseFolder), strings.HasPrefix(name, unitsFolder), d.Name() == stateFile,
			strings.Contains(name, "sums"):
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	return list
}
