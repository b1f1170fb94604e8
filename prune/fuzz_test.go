package prune

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzOutcomes: whatever was in a journal that opens, what is added to it is found again.
func FuzzOutcomes(f *testing.F) {
	const first = `{"command":"compress prune compare","job":"j"}` + "\n"
	for _, s := range []string{
		first + `{"key":"a","step":{"nll":1}}` + "\n" + `{"key":"b"`, strings.Replace(first, `"j"`, `"k"`, 1),
		first + `{"key":"a","step":null}` + "\n", first + `{"step":{"nll":1e999}}` + "\n", "\n", "", "null\n",
	} {
		f.Add([]byte(s))
	}

	path := filepath.Join(f.TempDir(), "journal")
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}

		j, err := openOutcomes(path, "j")
		if err != nil {
			return
		}

		had := len(j.done)
		if err := j.add("a new key", Outcome{Sparsity: .7}); err != nil {
			t.Fatal(err)
		}

		j.close()
		again, err := openOutcomes(path, "j")
		if err != nil {
			t.Fatal(err)
		}
		defer again.close()

		if again.done["a new key"].Sparsity != .7 || len(again.done) < had {
			t.Errorf("%d steps, then %v", had, again.done)
		}
	})
}
