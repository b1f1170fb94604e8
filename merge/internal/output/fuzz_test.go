package output

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/safetensors"
)

// FuzzJournal: an unfinished merge whose journal a stranger wrote is refused or continued, and continued to a
// whole output.
func FuzzJournal(f *testing.F) {
	for _, s := range []string{
		"{\"job\":\"j\"}\n{\"done\":{\"a\":[{\"o\":0,\"n\":8,\"c\":1}]}}\n",
		"{\"job\":\"j\"}\n{\"done\":{\"b\":null}}\n{\"done\":{\"a\":[]}}\n", "{\"job\":\"k\"}\n",
		"{\"done\":{\"a\":[{\"o\":-9223372036854775808,\"n\":9223372036854775807,\"c\":1}]}}\n", "{", "null\nnull\n",
	} {
		f.Add([]byte(s))
	}

	tensors := []safetensors.Info{{Name: "a", DType: safetensors.F32, Shape: []int64{2}, Size: 8}}
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		dir := filepath.Join(t.TempDir(), "out")
		stage := filepath.Join(filepath.Dir(dir), ".out.partial")
		if err := os.Mkdir(stage, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(stage, JournalName), text, 0o666); err != nil {
			t.Fatal(err)
		}

		o, err := Open(dir, Options{Resume: true, Job: "j", Tensors: tensors})
		if err != nil {
			return
		}

		if err := o.Abort(); err != nil {
			t.Error(err)
		}
	})
}

// FuzzManifest: the record of a finished output.
func FuzzManifest(f *testing.F) {
	for _, s := range []string{`{"job":"j"}`, `{"job":7}`, `{"job":"j"} {`, `[]`, ``} {
		f.Add([]byte(s))
	}

	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()
		if err := os.WriteFile(filepath.Join(dir, ManifestName), text, 0o666); err != nil {
			t.Fatal(err)
		}
		if job, ok := Job(dir); ok && job == "" {
			t.Error("a job without a name")
		}
	})
}
