package task

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

// What lm-evaluation-harness 0.4.13 does where a definition leaves something out: the arguments of generation,
// versions, the names and examples of nested groups, and the standard error of groups whose tasks are not
// weighted.
func TestConventions(t *testing.T) {
	task := func(name string, changes ...string) string {
		return strings.Replace(small(changes...), "task: small", "task: "+name, 1)
	}
	generate := []string{
		"multiple_choice", "generate_until", "metric: acc}, {metric: acc_norm", "metric: exact_match",
		"doc_to_choice: \"{{c}}\"", "fewshot_delimiter: \"#\"",
	}
	text := append([]string{"doc_to_target: g", "doc_to_target: q"}, generate...)
	dir := write(t, map[string]string{
		"small.jsonl": smallData,
		"one.jsonl":   strings.SplitAfter(smallData, "\n")[0] + strings.SplitAfter(smallData, "\n")[1],
		"a.yaml":      task("a"),
		"b.yaml": task("b", "small.jsonl", "one.jsonl", "doc_to_target: g",
			"doc_to_target: g\nmetadata: {version: 2}"),
		"g1.yaml": task("g1", text...) + "\n",
		"g2.yaml": task("g2", text...) + "\ngeneration_kwargs: {max_gen_toks: 3}\n",
		"top.yaml": "group: top\ntask:\n  - group: inner\n    task: [a, b]\n    aggregate_metric_list: [{metric: " +
			"acc, weight_by_size: false}]\n" +
			"  - g1\n  - g2\n",
	})

	r, samples, err := evaluate(t, t.Context(), open(t, nano+"/base"),
		[]string{filepath.Join(dir, "top.yaml"), dir + "/[abg]*.yaml"}, Options{Bootstrap: 100})
	if err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{
		`"arg_1": {"temperature": 0.0, "do_sample": false, "max_gen_toks": 256, "until": ["#"]}`,
		`"arg_1": {"max_gen_toks": 3, "until": ["#"]}`,
	} {
		if !strings.Contains(samples, want) {
			t.Errorf("no sample has %s", want)
		}
	}

	inner := r.Results["top::inner"]
	se := func(task string) float64 { return r.Results[task]["acc_stderr,none"].(float64) }
	if got, want := inner["acc_stderr,none"], math.Sqrt(se("a")*se("a")+se("b")*se("b"))/2; got != want {
		t.Errorf("standard error of a group: %v, want %v", got, want)
	}

	versions, _ := json.Marshal(r.Versions)
	if got := string(versions); got != `{"a":"Yaml","b":2,"g1":"Yaml","g2":"Yaml","top":"N/A","top::inner":"N/A"}` {
		t.Errorf("versions %s", got)
	}
	if got := r.GroupSubtasks["top"][0]; got != "top::inner" || r.NShot["top"] != 0 {
		t.Errorf("members %v, examples %v", r.GroupSubtasks, r.NShot)
	}
}

// Where choices are contexts, a number of doc_to_target is what follows them.
func TestNumberBehindContexts(t *testing.T) {
	dir := write(t, map[string]string{"small.yaml": small(`"Q: {{q}}\nA:"`, "g"), "small.jsonl": smallData})
	s, err := Load([]string{dir + "/small.yaml"})
	if err != nil {
		t.Fatal(err)
	}

	list, err := s.Check(Options{Limit: 1})
	if err != nil || list[0].Err != "" || list[0].Answers[0] != " "+list[0].Answers[0][1:] ||
		strings.Trim(list[0].Answers[0], " 0123456789") != "" {
		t.Errorf("%v %+v", err, list)
	}
}

// A name that is not known has few suggestions, also as the member of a group.
func TestUnknownNames(t *testing.T) {
	dir := write(t, map[string]string{"top.yaml": "group: top\ntask: [arc_eazy]\n"})
	for _, c := range [][2]string{
		{"arcc_easy", "did you mean arc_easy"},
		{"qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq", `q"`},
		{dir + "/top.yaml", `member of group or tag top: no such task: "arc_eazy"; did you mean arc_easy`},
	} {
		if _, err := Load([]string{c[0]}); err == nil || !strings.Contains(err.Error(), c[1]) ||
			len(err.Error()) > 250 {
			t.Errorf("%s: %v", c[0], err)
		}
	}
}

// A task that says 0 has no examples whatever is asked for; the first name of a limit of tokens counts; a
// temperature without do_sample is greedy where it is 0.
func TestNoExamples(t *testing.T) {
	dir := write(t, map[string]string{
		"small.yaml": small("doc_to_target: g", "doc_to_target: g\nnum_fewshot: 0"), "small.jsonl": smallData,
		"one.yaml": small("task: small", "task: one", "doc_to_target: g", "doc_to_target: g\nnum_fewshot: 1"),
		"cold.yaml": small("task: small", "task: cold", "multiple_choice", "generate_until",
			"metric: acc}, {metric: acc_norm", "metric: exact_match",
			"doc_to_choice: \"{{c}}\"", "generation_kwargs: {temperature: 0.0, max_tokens: 9, max_gen_toks: 7}"),
	})

	s, err := Load([]string{dir})
	if err != nil {
		t.Fatal(err)
	}

	if g := s.lib.Tasks["cold"].Generation; g.MaxTokens != 7 || g.Sample {
		t.Errorf("%+v", g)
	}

	shots := 2
	for name, want := range map[string]int{"small": 0, "one": 2, "cold": 2} {
		p, err := s.prompter(t.Context(), name, &Options{Shots: &shots})
		if err != nil {
			t.Fatal(err)
		}

		if p.Shots != want {
			t.Errorf("%s: %d examples, want %d", name, p.Shots, want)
		}
	}
}
