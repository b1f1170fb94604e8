package stage

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzJournal: whatever a crash or a stranger left in a journal, opening it keeps whole lines only, and what is added
// after that is found again.
func FuzzJournal(f *testing.F) {
	for _, s := range []string{
		"{\"format\":\"a\"}\t9e6e9f93\n{\"done\":[\"x\"", "{\"job\":1}\n", "null\t00000000\n",
		"\t00000000\n", "\n\n", "",
	} {
		f.Add([]byte(s))
	}

	path := filepath.Join(f.TempDir(), journalName)
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}

		j, err := OpenJournal(path)
		if err != nil {
			t.Fatal(err)
		}

		had := len(j.Lines())
		if err := j.Keep(had); err != nil {
			t.Fatal(err)
		}
		if err := j.Add("new"); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}

		again, err := OpenJournal(path)
		if err != nil {
			t.Fatal(err)
		}

		lines := again.Lines()
		if again.Fault() != nil || len(lines) != had+1 || string(lines[had]) != `"new"` {
			t.Errorf("%d lines, then %q: %v", had, lines, again.Fault())
		}

		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
