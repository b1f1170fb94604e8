package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzJournal: whatever was in a journal that opens, what is added to it is found again.
func FuzzJournal(f *testing.F) {
	for _, s := range []string{
		"{\"command\":\"c\",\"job\":\"j\"}\n{\"key\":\"a\",\"step\":{\"n\":1}}\n{\"key\":\"b\"",
		"{\"command\":\"c\",\"job\":\"k\"}\n", "{\"command\":\"c\",\"job\":\"j\"}\n{\"key\":\"a\",\"step\":null}\n",
		"{\"command\":\"c\",\"job\":\"j\"}\n{\"step\":{\"n\":1e99}}\n", "\n", "", "null\n",
	} {
		f.Add([]byte(s))
	}

	type step struct {
		N int `json:"n"`
	}
	path := filepath.Join(f.TempDir(), "journal")
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}

		j, err := OpenJournal[step](path, "c", "j")
		if err != nil {
			return
		}

		had := len(j.Done)
		if err := j.Add("a new key", step{7}); err != nil {
			t.Fatal(err)
		}

		j.Close()
		again, err := OpenJournal[step](path, "c", "j")
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()

		if again.Done["a new key"].N != 7 || len(again.Done) < had {
			t.Errorf("%d steps, then %v", had, again.Done)
		}
	})
}
