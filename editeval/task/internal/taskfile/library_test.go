package taskfile

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// data are the keys that every task needs.
const data = "dataset_path: json\ndataset_kwargs: {data_files: {test: a.jsonl, few: b.jsonl}}\ntest_split: test\n" +
	"doc_to_text: q\ndoc_to_target: a\n"

// library reads definitions, the first of which has the name a.yaml and so on.
func library(t *testing.T, texts ...string) (*Library, error) {
	t.Helper()
	files := map[string]string{}
	for i, text := range texts {
		files[string(rune('a'+i))+".yaml"] = text
	}
	return libraryOf(files)
}

func libraryOf(files map[string]string) (*Library, error) {
	l := NewLibrary()
	read := func(p string) ([]byte, error) {
		if text, ok := files[p]; ok {
			return []byte(text), nil
		}
		return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
	}

	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			if err := l.Add(read, name, true); err != nil {
				return nil, err
			}
		}
	}

	return l, l.Resolve()
}

// TestTask: every key lands where it belongs, and what is not said has the harness' default.
func TestTask(t *testing.T) {
	l, err := library(t, "task: plain\n"+data, "task: full\ntask_alias: alias\ntag: [x, y]\n"+
		"output_type: multiple_choice\ndoc_to_choice: c\ndataset_path: json\n"+
		"dataset_kwargs: {data_files: {test: [a, b], few: c}, field: rows}\n"+
		"test_split: test\ntraining_split: few\ndoc_to_text: q\ndoc_to_target: 1\ndescription: d\n"+
		"target_delimiter: ''\n"+
		"gen_prefix: g\nnum_fewshot: 3\nfewshot_delimiter: '|'\nrepeats: 2\nfewshot_split: few\n"+
		"fewshot_config: {sampler: first_n, doc_to_text: Q, gen_prefix: G}\nshould_decontaminate: true\n"+
		"generation_kwargs: {until: [a, b], max_gen_toks: 7, temperature: 0}\n"+
		"filter_list: [{name: f, filter: [{function: regex, regex_pattern: x}, {function: take_first}]}]\n"+
		"metric_list: [{metric: acc, aggregation: mean, higher_is_better: false, ignore_case: true, "+
		"regexes_to_ignore: [z]}]\nmetadata: {version: 2.0, anything: else}\n")
	if err != nil {
		t.Fatal(err)
	}

	p := l.Tasks["plain"]
	if p.OutputType != GenerateUntil || p.TargetDelimiter != " " || p.FewshotDelimiter != "\n\n" || p.Repeats != 1 ||
		p.NumFewshot != nil || p.Fewshot.Sampler != "default" || len(p.Metrics) != 1 ||
		p.Metrics[0].Name != "exact_match" || !slices.Equal(p.Generation.Until, []string{"\n\n"}) ||
		p.Generation.MaxTokens != DefaultTokens || p.Generation.Sample || p.Version != "" {
		t.Errorf("%+v", p)
	}

	f := l.Tasks["full"]
	if f.Alias != "alias" || !slices.Equal(f.Tags, []string{"x", "y"}) || f.Field != "rows" || f.Version != "2.0" ||
		!slices.Equal(f.Data["test"], []string{"a", "b"}) || f.DocToTarget != int64(1) || f.Description != "d" ||
		f.TargetDelimiter != "" || f.GenPrefix != "g" || *f.NumFewshot != 3 || f.FewshotDelimiter != "|" ||
		f.Repeats != 2 || f.TrainingSplit != "few" || !slices.Equal(f.Ignored, []string{"should_decontaminate"}) {
		t.Errorf("%+v", f)
	}
	if s := f.Fewshot; s.Sampler != "first_n" || s.Split != "few" || s.DocToText != "Q" || s.DocToTarget != int64(1) ||
		s.GenPrefix != "G" || s.FewshotDelimiter != "|" || s.HasSamples {
		t.Errorf("%+v", s)
	}
	if g := f.Generation; !slices.Equal(g.Until, []string{"a", "b"}) || g.MaxTokens != 7 || g.Sample {
		t.Errorf("%+v", g)
	}
	if x := f.Filters; len(x) != 1 || x[0].Name != "f" || len(x[0].Steps) != 2 || x[0].Steps[0].Function != "regex" {
		t.Errorf("%+v", x)
	}
	if m := f.Metrics; len(m) != 1 || m[0].Name != "acc" || *m[0].HigherIsBetter || !m[0].IgnoreCase ||
		m[0].IgnorePunct {
		t.Errorf("%+v", m)
	}
	if !slices.Equal(l.Tags["x"], []string{"full"}) {
		t.Errorf("%v", l.Tags)
	}
}

// TestFaultsOfTasks: every fault names the file, the line and the key, and all of one file come at once.
func TestFaultsOfTasks(t *testing.T) {
	for more, c := range map[string]struct {
		want string
		kind error
	}{
		"outptu_type: x\n": {
			`a.yaml:7:1: "outptu_type" (HINT: did you mean "output_type"?)`, ErrUnknownKey,
		},
		"output_type: guess\n": {
			`output_type "guess"; known: multiple_choice, loglikelihood`, ErrValue,
		},
		"output_type: multiple_choice\n": {
			"a.yaml: doc_to_choice: missing key", ErrMissing,
		},
		"num_fewshot: -1\n": {
			"num_fewshot is -1, want a whole number from 0 on", ErrValue,
		},
		"repeats: 0\n": {
			"repeats is 0, want a whole number from 1 on", ErrValue,
		},
		"doc_to_choice: 1.5\n": {
			"doc_to_choice is 1.5, want a text, a whole number", ErrValue,
		},
		"tag: {a: b}\n": {
			"tag is a dict, want a text or a list of texts", ErrValue,
		},
		"tag: [1]\n": {
			"tag holds a int, want texts", ErrValue,
		},
		"gen_prefix: [x]\n": {
			"gen_prefix is a list, want text", ErrValue,
		},
		"metadata: 3\n": {
			"metadata is a int, want keys and values", ErrValue,
		},
		"training_split: train\n": {
			`training_split "train" has no data_files`, ErrValue,
		},
		"process_docs: text\n": {
			"process_docs is a str, want a !function", ErrValue,
		},
		"process_docs: !function m.f\n": {
			"a.yaml:7: !function m.f is Python, which is not run (HINT: apply it", ErrUnsupported,
		},
		"process_results: !function m.f\n": {
			"compute it in Python from the answers", ErrUnsupported,
		},
		"filter_list: [{filter: [{a: 1}]}]\n": {
			"function of a filter: missing key", ErrMissing,
		},
		"filter_list: 3\n": {
			"filter_list is no list of keys and values", ErrValue,
		},
		"metric_list: [{aggregation: mean}]\n": {
			"metric: missing key", ErrMissing,
		},
		"metric_list: [{metric: a, hf_evaluate: yes}]\n": {
			"metrics of the evaluate package", ErrUnsupported,
		},
		"metric_list: [{metric: a, ignore_case: 1}]\n": {
			"ignore_case is 1, want true or false", ErrValue,
		},
		"fewshot_config: {sampler: best}\n": {
			`sampler "best"; known: default, first_n`, ErrValue,
		},
		"fewshot_config: {fewshot_indices: [-1]}\n": {
			"fewshot_indices holds -1, want row numbers", ErrValue,
		},
		"generation_kwargs: {do_sample: true, temperature: 0.7}\n": {
			"sampled generation", ErrUnsupported,
		},
		"generation_kwargs: {until: 3}\n": {
			"until is a int, want a text or a list", ErrValue,
		},
		"repeats: 0\nnum_fewshot: -1\n": {
			"num_fewshot is -1", ErrValue,
		},
	} {
		_, err := library(t, "task: t\n"+data+more)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "a.yaml:") {
			t.Errorf("%q: %v", more, err)
		}
		if strings.Count(more, "\n") == 2 && !strings.Contains(err.Error(), "repeats is 0") {
			t.Errorf("%q: only one fault of two: %v", more, err)
		}
	}

	for text, want := range map[string]error{
		"task: a/b\n" + data: ErrValue, "task: .hidden\n" + data: ErrValue, "task: ''\n" + data: ErrMissing,
		"task: t\ndoc_to_text: q\ndoc_to_target: a\ntest_split: test\n":            ErrMissing,
		"task: t\ndataset_path: openai/gsm8k\n" + strings.SplitN(data, "\n", 2)[1]: ErrUnsupported,
		"task: [a, b]\n": ErrMissing,
	} {
		l := NewLibrary()
		read := func(string) ([]byte, error) { return []byte(text), nil }
		if err := l.Add(read, "a.yaml", false); !errors.Is(err, want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestFaultsInOrder: a definition with several faults gives the same message every time.
func TestFaultsInOrder(t *testing.T) {
	var first string
	for range 20 {
		_, err := library(t, "task: t\noutput_type: multiple_choice\n"+
			"fewshot_config: {doc_to_text: 1.5, doc_to_target: 2.5}\n")
		if err == nil {
			t.Fatal("no fault")
		}
		if first == "" {
			first = err.Error()
		}
		if err.Error() != first {
			t.Fatalf("%s\n\n%s", err, first)
		}
	}
}

// TestDatasets: the format, the separator and the files of the splits.
func TestDatasets(t *testing.T) {
	for dataset, want := range map[string]string{
		"dataset_path: csv\ndataset_kwargs: {data_files: {test: x}}":               "",
		"dataset_path: csv\ndataset_kwargs: {data_files: {test: x}, sep: \"\\t\"}": "tsv",
		"dataset_path: parquet\ndataset_kwargs: {data_files: {test: x}}":           "parquet",
		"dataset_path: arrow\ndataset_kwargs: {data_files: {test: x}}":             "arrow",
		"dataset_path: text\ndataset_kwargs: {data_files: {test: x}}":              "text",
	} {
		l, err := library(t, "task: t\ntest_split: test\ndoc_to_text: q\ndoc_to_target: a\n"+dataset+"\n")
		if err != nil {
			t.Errorf("%q: %v", dataset, err)
			continue
		}
		if x := l.Tasks["t"]; x.Format != want || !slices.Equal(x.Data["test"], []string{"x"}) {
			t.Errorf("%q: %+v", dataset, x)
		}
	}

	// Files without a split are those of training.
	l, err := library(t, "task: t\ntest_split: train\ndoc_to_text: q\ndoc_to_target: a\ndataset_path: json\n"+
		"dataset_kwargs: {data_files: [x, y]}\n")
	if err != nil || !slices.Equal(l.Tasks["t"].Data["train"], []string{"x", "y"}) {
		t.Errorf("%v", err)
	}
	if _, err := library(t, "task: t\ntest_split: test\ndoc_to_text: q\ndoc_to_target: a\n"+
		"dataset_kwargs: {data_files: {test: x}, sep: ';'}\n"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a semicolon: %v", err)
	}
}

// TestGroups: members by name, whole definitions inside, a member with other keys, groups inside of groups; outer
// groups come first.
func TestGroups(t *testing.T) {
	l, err := library(t, "task: one\ntag: pair\n"+data, "task: two\ntag: pair\n"+data,
		"group: all\ngroup_alias: everything\ntask: [pair, {task: one, num_fewshot: 2}, {group: inner, task: [two]}, "+
			"{task: new, "+strings.TrimSuffix(strings.ReplaceAll(data, "\n", ", "), ", ")+"}]\n"+
			"aggregate_metric_list: [{metric: acc}, {metric: f1, weight_by_size: false, filter_list: [a, b]}]\n")
	if err != nil {
		t.Fatal(err)
	}

	g := l.Groups["all"]
	if g.Alias != "everything" || strings.Join(g.Members, " ") != "pair one all::inner all::new" {
		t.Errorf("%+v", g)
	}
	if a := g.Aggregates; len(a) != 2 || !a[0].WeightBySize || a[1].WeightBySize || a[0].Filters[0] != "none" ||
		strings.Join(a[1].Filters, " ") != "a b" {
		t.Errorf("%+v", a)
	}
	if n := l.Tasks["one"].NumFewshot; n == nil || *n != 2 || l.Tasks["all::new"] == nil {
		t.Errorf("%v", l.Names())
	}

	tasks, groups, err := l.Members("all")
	if err != nil || strings.Join(tasks, " ") != "one two one two all::new" ||
		strings.Join(groups, " ") != "all all::inner" {
		t.Errorf("%v %v %v", tasks, groups, err)
	}

	for text, want := range map[string]error{
		"group: g\ntask: []\n":                                               ErrMissing,
		"group: g\ntask: [[x]]\n":                                            ErrValue,
		"group: g\ntask: [{num_fewshot: 1}]\n":                               ErrMissing,
		"group: g\ntask: [a]\naggregate_metric_list: [{aggregation: max}]\n": ErrUnsupported,
		"group: g\ntask: [a]\ncolour: red\n":                                 ErrUnknownKey,
	} {
		if _, err := library(t, text); !errors.Is(err, want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestDefinedTwice: a name has one definition, of a task or of a group.
func TestDefinedTwice(t *testing.T) {
	task, group := "task: x\n"+data, "group: x\ntask: [y]\n"
	for name, texts := range map[string][]string{
		"tasks": {task, task}, "groups": {group, group}, "a task, then a group": {task, group},
		"a group, then a task": {group, task},
	} {
		if _, err := library(t, texts...); !errors.Is(err, ErrDuplicate) || !strings.Contains(err.Error(), "a.yaml") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCycles: groups that contain themselves, and files that include themselves, end.
func TestCycles(t *testing.T) {
	l, err := library(t, "group: a\ntask: [b]\n", "group: b\ntask: [a]\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Members("a"); !errors.Is(err, ErrCycle) {
		t.Error(err)
	}
	if _, err := library(t, "include: a.yaml\ntask: x\n"); !errors.Is(err, ErrCycle) {
		t.Error(err)
	}
}

// TestInclude: keys of the file win over those of what it includes, faults are named where they stand, and a file that
// is not there is a fault of the one that includes it.
func TestInclude(t *testing.T) {
	files := map[string]string{
		"sub/t.yaml": "include: ../base\ntask: t\nnum_fewshot: 4\n", "base": data + "num_fewshot: 1\ngen_prefix: p\n",
	}
	l, err := libraryOf(files)
	if err != nil {
		t.Fatal(err)
	}
	if x := l.Tasks["t"]; *x.NumFewshot != 4 || x.GenPrefix != "p" || x.Path != "sub/t.yaml" {
		t.Errorf("%+v", x)
	}

	for text, want := range map[string]string{
		"include: none.yaml\ntask: t\n": "a.yaml:1:1: include none.yaml: ",
		"include: /etc/x\ntask: t\n":    "want the path of a file beside this one",
		"include: 3\ntask: t\n":         "want the path of a file beside this one",
	} {
		if _, err := library(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestFind: names, patterns, and what was probably meant.
func TestFind(t *testing.T) {
	l, err := library(t, "task: arc_easy\ntag: arc\n"+data, "task: arc_hard\ntag: arc\n"+data,
		"group: all\ntask: [arc]\n")
	if err != nil {
		t.Fatal(err)
	}

	for name, want := range map[string]string{
		"arc_easy": "arc_easy", "all": "all", "arc": "arc", "arc_*": "arc_easy arc_hard",
		"*": "all arc arc_easy arc_hard",
	} {
		if got, err := l.Find(name); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}

	for name, want := range map[string]string{
		"arc_esay": "did you mean arc_easy", "zzzzzzzzzzzzzzzzzzzzz": "no such task", "q*": "nothing matches",
		"[": "syntax error in pattern",
	} {
		_, err := l.Find(name)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		if name[0] == 'z' && !strings.Contains(failure.Hint(err), "tasks list shows all") {
			t.Errorf("%s: hint %q", name, failure.Hint(err))
		}
		if name != "[" && (!errors.Is(err, ErrUnknownTask) || !failure.IsUsage(err)) {
			t.Errorf("%s: no wrong use: %v", name, err)
		}
	}
}

// TestFill: what a library has goes before what another one has, whichever kind it is.
func TestFill(t *testing.T) {
	own, err := library(t, "task: a\nnum_fewshot: 1\n"+data, "group: g\ntask: [a]\n")
	if err != nil {
		t.Fatal(err)
	}
	other, err := library(t, "task: a\nnum_fewshot: 2\n"+data, "task: g\n"+data, "group: h\ntask: [a]\n",
		"task: b\ntag: x\n"+data)
	if err != nil {
		t.Fatal(err)
	}

	own.Fill(other)
	if *own.Tasks["a"].NumFewshot != 1 || own.Tasks["g"] != nil || own.Groups["h"] == nil || own.Tasks["b"] == nil ||
		!slices.Equal(own.Tags["x"], []string{"b"}) {
		t.Errorf("%v", own.Names())
	}
}

// TestFunctions: a function is known in files of this program, and in others only where the module beside it is one
// that is known.
func TestFunctions(t *testing.T) {
	text := "task: t\nprocess_docs: !function preprocess_winogrande.x\n" + data
	l := NewLibrary()
	l.Own = func(text []byte) bool { return strings.Contains(string(text), "task: t\n") }
	if err := l.Add(func(string) ([]byte, error) { return []byte(text), nil }, "a.yaml", false); err != nil {
		t.Fatal(err)
	}
	if f := l.Tasks["t"].ProcessDocs; f.Known != "preprocess_winogrande.x" || f.Line != 2 {
		t.Errorf("%+v", f)
	}

	_, err := libraryOf(map[string]string{"a.yaml": text, "preprocess_winogrande.py": "def x(): pass\n"})
	var python *PythonError
	if !errors.As(err, &python) || python.Key != "process_docs" || !errors.Is(err, ErrUnsupported) {
		t.Errorf("a module that nobody knows: %v", err)
	}
}

// TestFolder: definitions at any depth, in order, and nothing else.
func TestFolder(t *testing.T) {
	files, err := Folder(fstest.MapFS{
		"b.yaml": {}, "a/x.yml": {}, "a/y.txt": {}, "a/b/z.yaml": {}, "c.yaml/d.yaml": {},
	})
	if err != nil || strings.Join(files, " ") != "a/b/z.yaml a/x.yml b.yaml c.yaml/d.yaml" {
		t.Errorf("%v %v", files, err)
	}
}

// TestMerge: keys of the second win and keep the order of the first; neither is changed.
func TestMerge(t *testing.T) {
	base, over := pyvalue.NewDict(), pyvalue.NewDict()
	base.Set("a", int64(1))
	base.Set("b", int64(2))
	over.Set("b", int64(3))
	over.Set("c", int64(4))

	out := merge(&document{keys: map[*pyvalue.Dict]places{}}, base, over)
	if got := pyvalue.Repr(out); got != "{'a': 1, 'b': 3, 'c': 4}" {
		t.Error(got)
	}
	if v, _ := base.Get("b"); v != int64(2) || base.Len() != 2 {
		t.Errorf("the base changed: %s", pyvalue.Repr(base))
	}
}
