package task

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Faults of files and data, each with its own error that names the place.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name, file, data string
		want             error
		says             string
	}{
		{
			"unknown key", small("doc_to_target: g", "doc_to_targt: g"), smallData, ErrUnknownKey,
			`did you mean "doc_to_target"?`,
		},
		{"line of a key", small("doc_to_target: g", "doc_to_targt: g"), smallData, ErrUnknownKey, "small.yaml:8"},
		{
			"unknown filter of a template", small("{{q}}", "{{q|shuffle}}"), smallData, ErrOutside,
			`filter "shuffle"; known: `,
		},
		{"undefined name", small("{{q}}", "{{question}}"), smallData, ErrUndefined, `"question"; known: q, c, g`},
		{"template syntax", small("{{q}}", "{{q"), smallData, ErrTemplate, "doc_to_text"},
		{"broken line", small(), smallData + `{"q": `, ErrRecord, "small.jsonl:5"},
		{"no object", small(), smallData + "[1]\n", ErrRecord, "small.jsonl:5"},
		{"empty choice", small(), `{"q": "one", "c": ["a", ""], "g": 0}`, ErrDocument, "choice 1 is empty"},
		{"no choices", small(), `{"q": "one", "c": [], "g": 0}`, ErrDocument, "document 0"},
		{"no data file", small("small.jsonl", "other.jsonl"), smallData, ErrNoData, "other.jsonl"},
		{"no such split", small("test_split: test", "test_split: exam"), smallData, ErrValue, "exam"},
		{"output type", small("multiple_choice", "multiple_guess"), smallData, ErrValue, "known: multiple_choice"},
		{"metric", small("acc_norm", "bleurt"), smallData, ErrMetric, "known: acc"},
		{
			"function", small("doc_to_target: g", "doc_to_target: !function utils.mine"), smallData, ErrUnsupported,
			"small.yaml:8: !function utils.mine is Python, which is not run (HINT: apply it once in Python and give " +
				"the result as JSONL; see docs/evaluation.md#python)",
		},
		{"hub", small("dataset_path: json", "dataset_path: allenai/ai2_arc"), smallData, ErrUnsupported, "local files"},
		{"anchors", small("test_split: test", "test_split: &x test"), smallData, ErrUnsupported, "anchors"},
		{"YAML", small("doc_to_target: g", "doc_to_target: [g"), smallData, ErrSyntax, "small.yaml"},
		{"twice", small("doc_to_target: g", "doc_to_target: g\ntask: other"), smallData, nil, "small.yaml"},
		{"missing", small("doc_to_target: g\n", ""), smallData, ErrMissing, "doc_to_target"},
		{
			"many examples", small("doc_to_target: g", "doc_to_target: g\nnum_fewshot: 9"), smallData, ErrExamples,
			"9 examples wanted",
		},
		{"name", small("task: small", "task: a/b"), smallData, ErrValue, "slashes"},
		{
			"sampled", small("multiple_choice", "generate_until", "metric: acc}, {metric: acc_norm",
				"metric: exact_match", "doc_to_choice: \"{{c}}\"", "generation_kwargs: {do_sample: true, "+
					"temperature: 1.0}"), smallData,
			ErrUnsupported, "greedy",
		},
		{
			"sampled by temperature", small("multiple_choice", "generate_until", "metric: acc}, {metric: acc_norm",
				"metric: exact_match", "doc_to_choice: \"{{c}}\"", "generation_kwargs: {temperature: 0.7}"), smallData,
			ErrUnsupported, "small.yaml:7:21: sampled",
		},
		{"deep", "task: " + strings.Repeat("[", 5000), smallData, nil, "small.yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := write(t, map[string]string{"small.yaml": c.file, "small.jsonl": c.data})
			s, err := Load([]string{filepath.Join(dir, "small.yaml")})
			if err == nil {
				var list []Checked
				if list, err = s.Check(Options{}); err == nil && list[0].Err != "" {
					err = errors.New(list[0].Err)
				} else if err == nil {
					err = errors.New(list[0].NoData)
				}
				if c.want != nil && strings.Contains(err.Error(), c.want.Error()) {
					err = errors.Join(err, c.want)
				}
			}
			if c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v; want %v and %q", err, c.want, c.says)
			}
		})
	}
}

func TestNames(t *testing.T) {
	dir := write(t, map[string]string{
		"a.yaml": small(), "small.jsonl": smallData,
		"b/b.yaml": "include: ../a.yaml\ntask: other\ntag: [mine]\nnum_fewshot: 1\n",
		"_x.yaml":  "doc_to_text: x\n",
		"g.yaml": "group: both\ntask: [small, mine, {task: small_too, include: 1, output_type: " +
			"multiple_choice}]\naggregate_metric_list: [{metric: acc}]\n",
		"dup.yml":   small(),
		"cycle.yml": "group: round\ntask: [round]\n",
		"loop.yml":  "include: loop.yml\ntask: x\n",
	})

	at := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		entries []string
		want    []string
		err     error
	}{
		{[]string{at("a.yaml")}, []string{"small"}, nil},
		{[]string{at("*.yaml")}, nil, ErrMissing}, // the third member of the group is no whole definition
		{[]string{at("a.yaml"), at("b/b.yaml"), "small", "mine"}, []string{"small", "other"}, nil},
		{[]string{at("a.yaml"), at("dup.yml")}, nil, ErrDuplicate},
		{[]string{at("cycle.yml")}, nil, ErrCycle},
		{[]string{at("loop.yml")}, nil, ErrCycle},
		{[]string{"arc_esay"}, nil, ErrUnknownTask},
		{[]string{"nothing_*"}, nil, ErrUnknownTask},
		{[]string{"arc_*"}, []string{"arc_challenge", "arc_easy"}, nil},
		{[]string{"ai2_arc"}, []string{"arc_challenge", "arc_easy"}, nil},
		{nil, nil, ErrUnknownTask},
	} {
		s, err := Load(c.entries)
		if !errors.Is(err, c.err) {
			t.Errorf("%v: %v, want %v", c.entries, err, c.err)
			continue
		}

		if err == nil && !slices.Equal(s.Tasks(), c.want) {
			t.Errorf("%v: %v, want %v", c.entries, s.Tasks(), c.want)
		}
	}

	s, err := Load([]string{"mmlu"})
	if err != nil || len(s.Tasks()) != 57 || len(s.Groups()) != 5 {
		t.Errorf("mmlu: %d tasks, %d groups, %v", len(s.Tasks()), len(s.Groups()), err)
	}

	if _, err := Load([]string{"arc_esay"}); !strings.Contains(err.Error(), "did you mean arc_easy?") {
		t.Error(err)
	}
}

// Every definition of this package can be read, and names its version and its data.
func TestShipped(t *testing.T) {
	list, err := Definitions(nil)
	if err != nil {
		t.Fatal(err)
	}

	names := map[string]bool{}
	for _, d := range list {
		names[d.Name] = true
		if d.Kind == "task" && (d.Version == "" || len(d.Data) == 0 || len(d.Metrics) == 0) {
			t.Errorf("%+v", d)
		}
	}

	for _, n := range []string{
		"arc_easy", "arc_challenge", "boolq", "piqa", "winogrande", "openbookqa", "social_iqa", "commonsense_qa",
		"mmlu", "truthfulqa_mc1",
		"truthfulqa_mc2", "lambada_openai", "wikitext", "gsm8k", "bbh_fewshot", "bbh_cot_fewshot", "hellaswag",
	} {
		if !names[n] {
			t.Errorf("%s is missing", n)
		}
	}
}
