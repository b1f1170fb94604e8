package task

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzCompare: runs that a stranger wrote are compared or refused.
func FuzzCompare(f *testing.F) {
	const results = `{"results":{"t":{"acc,none":0.5}},"configs":{"t":{"task":"t","metric_list":[{"metric":"acc","aggregation":"mean"}]}},"n-samples":{"t":{"original":2,"effective":2}},"higher_is_better":{"t":{"acc":true}}}`
	const samples = `{"doc_id":0,"doc_hash":"a","target_hash":"b","filter":"none","metrics":["acc"],"acc":1}` + "\n" +
		`{"doc_id":1,"doc_hash":"c","target_hash":"d","filter":"none","metrics":["acc","f1"],"acc":0,"f1":[1,0]}` + "\n"
	f.Add([]byte(results), []byte(samples), []byte(samples))
	f.Add([]byte(results), []byte(samples),
		[]byte(`{"doc_id":0,"doc_hash":"a","target_hash":"b","filter":"none","metrics":["acc"],"acc":[1,[0.25,0.75]]}`))
	f.Add([]byte(`{"configs":{"../x":{}}}`), []byte(`{"doc_id":-1,"metrics":[""]}`), []byte("{\n"))
	f.Add([]byte(`{"configs":{"t":null},"results":{"t":null}}`), []byte(`null`), []byte("\n\n"))
	dirs := []string{f.TempDir(), f.TempDir()}
	f.Fuzz(func(t *testing.T, results, a, b []byte) {
		defer fuzzlimit.Watch(t, len(results)+len(a)+len(b))()

		for i, text := range [][]byte{a, b} {
			for name, data := range map[string][]byte{"results.json": results, "samples_t.jsonl": text} {
				if err := os.WriteFile(filepath.Join(dirs[i], name), data, 0o666); err != nil {
					t.Fatal(err)
				}
			}
		}

		c, err := Compare(dirs[0], dirs[1], CompareOptions{Draws: 10})
		if err == nil && c == nil {
			t.Error("neither a comparison nor an error")
		}
	})
}
