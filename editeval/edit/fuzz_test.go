package edit

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/stage"
)

// FuzzSealed: journals and logs whose lines have their checksums, so that what is in them is looked at.
func FuzzSealed(f *testing.F) {
	const head = `{"header":{"format":"compress edits journal","version":1,"model":"m","job":"job"}}` + "\n"
	for _, s := range []string{
		"", `{"base":{"linear":"h.0.mlp","dtype":"F32","data":"AAAAAA=="}}`,
		`{"step":{"Deltas":[{}],"parts":[{"left":{"rows":1,"cols":1,"data":"AAAAAAAAAAA="},"dense":{"rows":1,"cols":1,"data":"AAAAAA=="}}],"keys":[{"block":1,"keys":{"rows":1,"cols":1,"data":"AAAAAA=="}}]}}`,
		`{"step":{"deltas":[{"linear":"h.0.mlp","left":null}],"parts":[{}]}}`, `{"note":{"done":3}}`,
		"{\"step\":{}}\n{\"note\":1}\n{\"step\":{}}", `{"base":{"data":"!"}}`,
		`{"step":{"parts":[{"left":{"rows":4294967296,"cols":4294967296,"data":"AA=="}}]}}`,
	} {
		f.Add([]byte(head + s))
	}

	path := filepath.Join(f.TempDir(), "log")
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		var journal, sealed []byte
		last := ""
		for line := range bytes.Lines(text) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			journal = append(journal, stage.SealLine(line)...)
			next := stage.SealAfter(last, line)
			last, _, _ = strings.Cut(string(next), " ")
			sealed = append(sealed, next...)
		}

		_, _ = ReadJournal(bytes.NewReader(journal))
		if err := os.WriteFile(path, sealed, 0o666); err != nil {
			t.Fatal(err)
		}

		u, err := openLog(path, "job")
		if err != nil {
			return
		}
		if u.good > bytes.Count(sealed, []byte("\n")) || len(u.notes) > max(0, u.good-1) {
			t.Errorf("%d lines, %d notes", u.good, len(u.notes))
		}
		if err := u.file.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
