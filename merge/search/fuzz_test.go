package search

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzJournal: the journal of an interrupted search.
func FuzzJournal(f *testing.F) {
	for _, s := range []string{
		"{\"job\":\"x\"}\tb0d4bb15\n", "{\"job\":\"x\"}\n{\"generation\":1e99}\n", "{}\n{\n", "\n", "null\n", "",
	} {
		f.Add([]byte(s))
	}

	path := filepath.Join(f.TempDir(), "journal")
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}

		j, steps, err := openJournal(path, "x", true)
		if err != nil {
			return
		}
		defer j.Close()

		if len(steps) > len(text) {
			t.Errorf("%d steps from %d bytes", len(steps), len(text))
		}
	})
}
