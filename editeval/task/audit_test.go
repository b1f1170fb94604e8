package task

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/task/internal/builtin"
	"github.com/modelcompress/compress/editeval/task/internal/metric"
	"github.com/modelcompress/compress/editeval/task/internal/prompt"
	"github.com/modelcompress/compress/editeval/task/internal/score"
	"github.com/modelcompress/compress/editeval/task/internal/store"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// audited is a task of a kind, of whose documents so many are there.
func audited(output string, total int) *one {
	return &one{
		Prompter: &prompt.Prompter{Task: &taskfile.Task{OutputType: output}, Total: total},
		items:    map[string]map[string][]metric.Item{},
	}
}

// TestAuditOfChoices: how often the same place is chosen, what a constant answer could reach, and what guessing would;
// answers that are no numbers and right choices that are none are counted.
func TestAuditOfChoices(t *testing.T) {
	task := audited(taskfile.MultipleChoice, 10)
	a := &task.audit
	for i, gold := range []any{int64(0), int64(0), int64(1), int64(9)} {
		answers := []builtin.Answer{{LL: -1}, {LL: -2}, {LL: -3}}
		if i == 3 {
			answers = []builtin.Answer{{LL: math.NaN()}, {LL: -2}, {LL: -3}}
		}
		a.choice(&prompt.Document{Choices: []string{"a", "b", "c"}, Gold: gold}, answers, i != 3)
	}
	task.items["none"] = map[string][]metric.Item{"acc": {{X: 1}, {X: 1}, {X: 0}, {X: 0}}, "f1": {{X: 1}}}
	a.finish(task)

	if a.Documents != 4 || a.Left != 6 || a.NonFinite != 1 || a.OutOfRange != 1 || *a.Constant != 0.75 ||
		*a.Prior != 0.5 || math.Abs(*a.Chance-1./3) > 1e-15 || *a.FewChosen != 1 || a.Right["acc,none"] != 2 {
		t.Errorf("%+v", a)
	}
	if _, counted := a.Right["f1,none"]; counted {
		t.Error("a figure of classes is counted by documents")
	}
	if a.Empty != nil || a.Same != nil {
		t.Error("rates of texts of a task without any")
	}
}

// TestAuditOfTexts: what ended texts, and how many are empty, the same, repetitions, or without an answer.
func TestAuditOfTexts(t *testing.T) {
	task := audited(taskfile.GenerateUntil, 4)
	a := &task.audit
	none := map[string]score.Outcome{"f": {Filtered: "[invalid]"}}
	some := map[string]score.Outcome{"f": {Filtered: "[invalid]"}, "g": {Filtered: "4"}}
	for _, c := range []struct {
		text, ended string
		outcomes    map[string]score.Outcome
	}{
		{" \n", "eos", none},
		{"a b c d a b c d a b c d", "length", some},
		{"four", "stop", some},
		{"four", "nonfinite", none},
	} {
		a.text(store.Answer{Text: c.text, Ended: c.ended}, c.outcomes)
	}
	a.finish(task)

	if *a.Empty != 0.25 || *a.Same != 0.5 || *a.Repeated != 0.25 || *a.Invalid != 0.5 || a.NonFinite != 1 ||
		a.Ended["eos"] != 1 || a.Ended["stop"] != 1 || a.Ended["length"] != 1 || a.Left != 0 {
		t.Errorf("%+v", a)
	}
}

// TestRepeats: most runs of four words have been there before; short texts never repeat.
func TestRepeats(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "a a a a a a a": false, "a a a a a a a a": true, "a b c d e f g h i j": false,
		strings.Repeat("one two three ", 5): true,
	} {
		if got := repeats(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestSigns: what hints at a collapsed model, and that a task with a common answer does not.
func TestSigns(t *testing.T) {
	rate := func(v float64) *float64 { return &v }
	for want, a := range map[string]Audit{
		"answers that are not finite numbers": {NonFinite: 1},
		"nearly always the same choice":       {Documents: 11, Constant: rate(1), Prior: rate(0.5)},
		"mostly empty texts":                  {Documents: 11, Empty: rate(0.5), Same: rate(1)},
		"mostly the same text":                {Documents: 11, Empty: rate(0), Same: rate(0.5)},
		"mostly repetitions":                  {Repeated: rate(0.5)},
		"":                                    {Documents: 11, Constant: rate(1), Prior: rate(0.97)},
		"answers that are not finite numbers, twice": {NonFinite: 1, Repeated: rate(1)},
	} {
		got := strings.Join(a.Signs(), ", ")
		if want = strings.Replace(want, "twice", "mostly repetitions", 1); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if few := (&Audit{Documents: 10, Constant: rate(1)}).Signs(); len(few) > 0 {
		t.Errorf("of ten documents: %q", few)
	}
}

// TestPretty: json.dumps(doc, indent=2, ensure_ascii=False) of Python 3.12, which the harness hashes.
func TestPretty(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "{}", `[]`: "[]", `{"a": []}`: "{\n  \"a\": []\n}",
		`{"é": [1, 2.0, true, null, {"b": "\n"}]}`: "{\n  \"é\": [\n    1,\n    2.0,\n    true,\n    null,\n    {\n" +
			"      \"b\": \"\\n\"\n    }\n  ]\n}",
	} {
		v, err := pyvalue.ParseJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := pretty(v); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// grouped are the results of three tasks, and a group of two of them.
func grouped() *Results {
	up, down := true, false
	row := func(acc float64) map[string]any { return map[string]any{"acc,none": acc, "acc_stderr,none": 0.1} }
	return &Results{
		Results:        map[string]map[string]any{"a": row(0.5), "b": row(1), "c": {"acc,none": 0.25}},
		Groups:         map[string]map[string]any{},
		NSamples:       map[string]Count{"a": {10, 10}, "b": {30, 30}, "c": {5, 5}},
		NShot:          map[string]int{"a": 2, "b": 2, "c": 3},
		HigherIsBetter: map[string]map[string]*bool{"a": {"acc": &up}, "b": {"acc": &up}, "c": {"acc": &down}},
		GroupSubtasks:  map[string][]string{"g": {"a", "b"}, "h": {"a", "c"}},
	}
}

// TestGroupFigures: means by documents and by tasks, pooled standard errors, and none where a task has none; directions
// that disagree are no direction.
func TestGroupFigures(t *testing.T) {
	r := grouped()
	aggregate := func(bySize bool) []taskfile.Aggregate {
		return []taskfile.Aggregate{{Metric: "acc", WeightBySize: bySize, Filters: []string{"none"}}}
	}

	r.group(&taskfile.Group{Name: "g", Aggregates: aggregate(true)}, []string{"a", "b"})
	row := r.Results["g"]
	if row["acc,none"] != 0.875 || row["sample_len"] != 40 || row["alias"] != "g" {
		t.Errorf("%v", row)
	}
	if se, want := row["acc_stderr,none"], metric.Pooled([]float64{0.1, 0.1}, []int{10, 30}); se != want {
		t.Errorf("%v, want %g", se, want)
	}

	r.group(&taskfile.Group{Name: "g", Alias: "both", Aggregates: aggregate(false)}, []string{"a", "b"})
	row = r.Results["g"]
	if row["acc,none"] != 0.75 || row["alias"] != "both" {
		t.Errorf("%v", row)
	}
	if se, ok := row["acc_stderr,none"].(float64); !ok || math.Abs(se-math.Sqrt(0.02)/2) > 1e-15 {
		t.Errorf("%v", row["acc_stderr,none"])
	}

	r.group(&taskfile.Group{Name: "h", Aggregates: aggregate(true)}, []string{"a", "c"})
	if row := r.Results["h"]; row["acc_stderr,none"] != notAvailable || r.HigherIsBetter["h"]["acc"] != nil {
		t.Errorf("%v, %v", row, r.HigherIsBetter["h"])
	}

	r.group(&taskfile.Group{Name: "none"}, []string{"a"})
	if _, listed := r.Groups["none"]; listed {
		t.Error("a group without figures is among those with some")
	}

	r.shots("g")
	r.shots("h")
	if n, ok := r.NShot["g"]; !ok || n != 2 {
		t.Errorf("examples of g: %d", n)
	}
	if n, ok := r.NShot["h"]; ok {
		t.Errorf("examples of tasks that disagree: %d", n)
	}
}

// TestKeys: figures are "metric,filter"; standard errors and other keys are not.
func TestKeys(t *testing.T) {
	for key, want := range map[string]bool{"acc,none": true, "acc_stderr,none": false, "alias": false, "acc": false} {
		if _, _, ok := cutKey(key); ok != want {
			t.Errorf("%s: %v", key, ok)
		}
	}

	r := &Results{Results: map[string]map[string]any{
		"a": {"acc,strict": 1.0, "acc,loose": 1.0, "acc_stderr,strict": 0.1}, "b": {"alias": "b"},
	}}
	if got := r.Filters("a"); !slices.Equal(got, []string{"loose", "strict"}) {
		t.Errorf("%v", got)
	}
	if got := r.Filters("b"); !slices.Equal(got, []string{"none"}) {
		t.Errorf("%v", got)
	}
}

// TestNumber: JSON has no numbers that are not finite.
func TestNumber(t *testing.T) {
	if number(math.NaN()) != nil || number(math.Inf(-1)) != nil || number(1.5) != 1.5 {
		t.Error(number(math.NaN()), number(1.5))
	}
	if got := sanitized(`a/b:c|d`); got != "a__b__c__d" {
		t.Error(got)
	}
}
