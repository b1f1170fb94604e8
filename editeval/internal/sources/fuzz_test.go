package sources

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzTexts: the files that a plan takes texts from.
func FuzzTexts(f *testing.F) {
	for _, s := range []string{
		"a b\nc\n\nd\n", "\"a\"\n{\"text\":\"b\"}\n", "{\"text\":null}\n",
		"goal,target\n\"x\ny\",z\n", "goal\na,b\n", "goal\n\"", "\xff\n",
	} {
		f.Add([]byte(s), byte(2))
	}

	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte, limit byte) {
		defer fuzzlimit.Watch(t, len(text))()

		for _, name := range []string{"t.txt", "t.jsonl", "t.csv"} {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, text, 0o666); err != nil {
				t.Fatal(err)
			}

			if strings.HasSuffix(name, ".csv") {
				if list, err := column(path, "goal"); err == nil && len(list) == 0 {
					t.Error("no prompts and no error")
				}
				continue
			}

			docs, err := Documents(path, int(limit))
			if err == nil && (len(docs) == 0 || limit > 0 && len(docs) > int(limit)) {
				t.Errorf("%d documents, limit %d", len(docs), limit)
			}
		}
	})
}
