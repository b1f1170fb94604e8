package stage

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzJournal: whatever a crash or a stranger left in a journal, opening it keeps whole lines only, and what is
// added after that is found again.
func FuzzJournal(f *testing.F) {
	for _, s := range []string{
		"{\"job\":\"a\"}\n{\"done\":[\"x\",\"y\"],\"sums\":[1]}\n{\"done\":[\"x\"],\"sums\":[4294967295]}\n{\"done\":[\"z\"", "{\"job\":1}\n", "null\n[]\n", "{\"sums\":[-1]}\n", "\n\n", "",
	} {
		f.Add([]byte(s))
	}

	path := filepath.Join(f.TempDir(), journalName)
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}

		j, err := openJournal(path)
		if err != nil {
			t.Fatal(err)
		}

		job, had := j.job()
		sums, names := j.done()
		if len(sums) != len(names) {
			t.Errorf("%d sums of %d names", len(sums), len(names))
		}

		// as add does, without waiting for the device
		_, err = j.file.WriteString("{\"done\":[\"new tensor\"],\"sums\":[7]}\n")
		if err := j.close(); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}

		again, err := openJournal(path)
		if err != nil {
			t.Fatal(err)
		}

		sums, _ = again.done()
		if after, has := again.job(); had && (!has || after != job) || sums["new tensor"] == nil ||
			*sums["new tensor"] != 7 {
			t.Errorf("job %q, then %q; sums %v", job, after, sums)
		}

		if err := again.close(); err != nil {
			t.Fatal(err)
		}
	})
}
