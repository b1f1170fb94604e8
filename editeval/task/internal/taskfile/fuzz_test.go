package taskfile

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// Any text is a definition or an error.
func FuzzAdd(f *testing.F) {
	f.Add("task: x\ndataset_path: json\ndataset_kwargs: {data_files: {test: a}}\ntest_split: test\ndoc_to_text: " +
		"a\ndoc_to_target: b\n")
	f.Add("group: g\ntask: [a, {task: b, num_fewshot: 2}]\naggregate_metric_list: [{metric: acc, " +
		"weight_by_size: false}]\n")
	f.Add("task: x\nprocess_docs: !function a.b\nfewshot_config: {sampler: first_n, samples: [{a: 1}]}\n")
	f.Add("a: &x [1]\nb: *x\n")
	f.Add(strings.Repeat("- ", 100))
	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()

		l := NewLibrary()
		read := func(p string) ([]byte, error) {
			if p == "x.yaml" {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		}

		if err := l.Add(read, "x.yaml", false); err == nil {
			if err := l.Resolve(); err != nil && errors.Is(err, ErrSyntax) {
				t.Error(err)
			}
		}
	})
}
