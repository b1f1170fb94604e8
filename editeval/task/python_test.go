package task

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
)

// hellaswagData fits HellaSwag, so that a function which took it for that would find what it looks for.
const hellaswagData = `{"q": "one", "c": ["a", "b"], "g": 0, "activity_label": "Cooking", "ctx_a": "A cook", ` +
	`"ctx_b": "then", "endings": ["x", "y"], "label": "1"}` + "\n"

// The two ways out of Python.
const (
	applyOnce = "apply it once in Python and give the result as JSONL"
	compute   = "compute it in Python from the answers in samples_TASK.jsonl"
)

// A function of a user's file is Python, whatever it is called and whatever stands beside it: it is refused
// where it stands.
func TestPythonIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		line     string // the last one of the task file
		python   string // utils.py, "" for none
		function string
		way      string
	}{
		"no Python beside": {"process_docs: !function utils.process_docs", "", "utils.process_docs", applyOnce},
		"Python beside": {
			"process_docs: !function utils.process_docs", "def process_docs(d): return d\n", "utils.process_docs",
			applyOnce,
		},
		"another name": {"process_docs: !function docs.hellaswag", "", "docs.hellaswag", applyOnce},
		"no module":    {"process_docs: !function process_docs", "", "process_docs", applyOnce},
		"a prefix":     {"gen_prefix: !function utils.doc_to_target", "", "utils.doc_to_target", applyOnce},
		"results": {
			"process_results: !function utils.process_results_mc2", "", "utils.process_results_mc2",
			compute,
		},
		"a filter": {"filter_list: [{name: x, filter: [{function: !function utils.F}]}]", "", "utils.F", compute},
		"a class":  {"class: !function task.Mine", "", "task.Mine", applyOnce},
		"examples": {"fewshot_config: {samples: !function utils.samples}", "", "utils.samples", applyOnce},
	} {
		t.Run(name, func(t *testing.T) {
			text := small() + c.line + "\n"
			files := map[string]string{"t.yaml": text, "small.jsonl": hellaswagData}
			if c.python != "" {
				files["utils.py"] = c.python
			}

			dir := write(t, files)
			want := fmt.Sprintf("%s/t.yaml:%d: !function %s is Python, which is not run (HINT: %s; see "+
				"docs/evaluation.md#python)",
				dir, strings.Count(text, "\n"), c.function, c.way)
			_, err := Load([]string{filepath.Join(dir, "t.yaml")})
			if !errors.Is(err, ErrUnsupported) || err.Error() != want {
				t.Errorf("%v\nwant %s", err, want)
			}
		})
	}
}

// A function is named where it stands, which may be an included file.
func TestIncludedPython(t *testing.T) {
	dir := write(t, map[string]string{
		"t.yaml": "include: base.txt\n" + small(), "base.txt": "\n\nprocess_docs: !function utils.process_docs\n",
	})
	_, err := Load([]string{filepath.Join(dir, "t.yaml")})
	if err == nil || !strings.HasPrefix(err.Error(), dir+"/base.txt:3: !function utils.process_docs is Python") {
		t.Error(err)
	}
}

// What an including file replaces is not called.
func TestReplacedPython(t *testing.T) {
	dir := write(t, map[string]string{
		"base.txt": "process_docs: !function utils.process_docs\ndoc_to_target: !function utils.doc_to_target\n",
		"t.yaml":   "include: base.txt\nprocess_docs: null\n" + small(), "small.jsonl": smallData,
	})

	s, err := Load([]string{filepath.Join(dir, "t.yaml")})
	if err != nil {
		t.Fatal(err)
	}

	if list, err := s.Check(Options{}); err != nil || list[0].Err != "" {
		t.Error(list, err)
	}
}

// The functions of this package's files are theirs: in a copy of one, and in a file that includes a copy;
// in a copy that was changed, by as little as a line, they are a user's.
func TestShippedFunctions(t *testing.T) {
	text, err := fs.ReadFile(shippedFiles, "shipped/hellaswag.yaml")
	if err != nil {
		t.Fatal(err)
	}

	own := "dataset_kwargs: {data_files: {train: small.jsonl, validation: small.jsonl}}\n"
	data := "hellaswag/hellaswag_val.jsonl"
	function := "process_docs: !function docs.hellaswag"
	for name, c := range map[string]struct {
		files   map[string]string
		refused bool
	}{
		"a copy":         {map[string]string{"t.yaml": string(text), data: hellaswagData}, false},
		"included":       {map[string]string{"t.yaml": "include: h.yaml\ntask: mine\n" + own}, false},
		"a changed copy": {map[string]string{"t.yaml": string(text) + "num_fewshot: 0\n"}, true},
		"replaced by a user's": {
			map[string]string{"t.yaml": "include: h.yaml\ntask: mine\n" + function + "\n" + own},
			true,
		},
		"replaced in a group": {
			map[string]string{"t.yaml": "group: g\ntask: [{task: hellaswag, " + function + "}]\n"},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.files["small.jsonl"], c.files["h.yaml"] = hellaswagData, string(text)
			dir := write(t, c.files)

			s, err := Load([]string{filepath.Join(dir, "t.yaml")}, dir)
			if c.refused {
				var python *taskfile.PythonError
				if !errors.As(err, &python) {
					t.Errorf("%v, want a refusal", err)
				}
				return
			}

			if err != nil {
				t.Fatal(err)
			}

			list, err := s.Check(Options{})
			if err != nil || list[0].Err+list[0].NoData != "" || list[0].Prompt != "Cooking: A cook Then" {
				t.Errorf("%+v %v", list, err)
			}
		})
	}
}

// A function of a file of lm-evaluation-harness is known by the file's text; with a byte more it is not.
func TestKnownPython(t *testing.T) {
	python, err := os.ReadFile(filepath.Join(oracle(t), "eval/tasks/utils.py"))
	if err != nil {
		t.Skip("no reference runs")
	}

	task := small() + "process_results: !function utils.process_results_mc2\n"
	for _, c := range []struct {
		text  string
		known bool
	}{{string(python), true}, {string(python) + "\n", false}} {
		dir := write(t, map[string]string{"t.yaml": task, "utils.py": c.text})
		if _, err := Load([]string{filepath.Join(dir, "t.yaml")}); (err == nil) != c.known {
			t.Errorf("known %v: %v", c.known, err)
		}
	}
}
