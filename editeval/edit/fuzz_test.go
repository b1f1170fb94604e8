package edit

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/fuzzlimit"
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

	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		var sealed []byte
		for line := range bytes.Lines(text) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			sealed = fmt.Appendf(sealed, "%s %s\n", site.Hash(line), line)
		}

		_, _ = ReadJournal(bytes.NewReader(sealed))
		j, notes, good, err := readLog(bytes.NewReader(sealed), "job")
		if err != nil {
			return
		}

		if j == nil || good <= 0 || good > int64(len(sealed)) || len(notes) > bytes.Count(sealed[:good], []byte("\n")) {
			t.Errorf("%d of %d bytes, %d notes", good, len(sealed), len(notes))
		}
	})
}
