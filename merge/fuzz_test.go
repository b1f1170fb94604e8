package merge

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/merge/internal/output"
)

// FuzzReadReport: the record of a finished merge, from which an output is continued.
func FuzzReadReport(f *testing.F) {
	for _, s := range []string{
		`{"job":"x","method":"ties","inputs":[{"path":"a","files":["m.safetensors"]}],"warnings":["w"]}`,
		`{"inputs":null}`, `{"inputs":[1]}`, `[]`, `{"tensors":1e999}`,
	} {
		f.Add([]byte(s))
	}

	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()
		if err := os.WriteFile(filepath.Join(dir, output.ManifestName), text, 0o666); err != nil {
			t.Fatal(err)
		}
		if r, err := readReport(dir); (r == nil) == (err == nil) {
			t.Errorf("%v, %v", r, err)
		}
	})
}
