package task

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// nano is the folder of the shipped tiny models.
const nano = "../../testdata/nano"

// write makes files under a new folder.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	return dir
}

// small is a task file; change replaces text of it.
func small(change ...string) string {
	return strings.NewReplacer(change...).Replace(`task: small
dataset_path: json
dataset_kwargs: {data_files: {test: small.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Q: {{q}}\nA:"
doc_to_choice: "{{c}}"
doc_to_target: g
metric_list: [{metric: acc}, {metric: acc_norm}]
`)
}

const smallData = `{"q": "one", "c": ["a", "bb"], "g": 0}
{"q": "two", "c": ["a", "bb", "c"], "g": 1}

{"q": "three", "c": ["a"], "g": 0}
`
