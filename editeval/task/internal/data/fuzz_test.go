package data

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzLoad: documents in every format but Parquet and Arrow, which have targets of their own, followed by a list of
// labels.
func FuzzLoad(f *testing.F) {
	for i, s := range []string{
		"{\"a\":1}\n{\"b\":[null,1.5]}\n", "{\"a\":", `[{"a":1},{"a":"x"}]`,
		"a,b\n1,\"x\ny\"\n2,\n", "a\tb\n1\tx\"y\n", "one\ntwo\n", `{"rows":[{"a":{"b":[1]}}]}`, "\ufeffa,a\n1,2\n",
		"[[]]", "1e999",
	} {
		for format := range len(known) {
			f.Add(byte(format), []byte(s), []byte("1\n2\n"), i == 6)
		}
	}

	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, format byte, text, labels []byte, field bool) {
		defer fuzzlimit.Watch(t, len(text)+len(labels))()

		ext := known[int(format)%len(known)]
		if tables[ext] != nil {
			return
		}

		s := Source{Files: []string{"d." + ext}, Bases: []string{dir}}
		if field {
			s.Field = "rows"
		}
		if len(labels) > 0 {
			s.Files = append(s.Files, "d.lst")
		}

		for name, data := range map[string][]byte{s.Files[0]: text, "d.lst": labels} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
				t.Fatal(err)
			}
		}

		docs, err := s.Load()
		if err != nil {
			return
		}

		if len(docs) == 0 || slices.Contains(docs, nil) {
			t.Errorf("%d documents, or one that is none", len(docs))
		}
	})
}
