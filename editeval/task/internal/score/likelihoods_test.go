package score

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/task/internal/builtin"
	"github.com/modelcompress/compress/editeval/task/internal/filter"
	"github.com/modelcompress/compress/editeval/task/internal/prompt"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// TestRolling: a text counts with its words and its bytes, whatever its letters are.
func TestRolling(t *testing.T) {
	s := scorer(t, taskfile.Rolling, "word_perplexity", "byte_perplexity", "bits_per_byte")
	o, finite, err := s.Likelihoods(&prompt.Document{Target: "été à Paris"}, []builtin.Answer{{LL: -9}})
	if err != nil || !finite {
		t.Fatal(finite, err)
	}
	if w, b := o.Items["word_perplexity"], o.Items["byte_perplexity"]; w.X != -9 || w.N != 3 || b.X != -9 ||
		b.N != 14 ||
		o.Items["bits_per_byte"].N != b.N {
		t.Errorf("%+v", o.Items)
	}
}

// TestLogLikelihood: the likelihood of a continuation, and whether it is the greedy one; only what the task asks for.
func TestLogLikelihood(t *testing.T) {
	both := scorer(t, taskfile.LogLikelihood, "perplexity", "acc")
	o, finite, err := both.Likelihoods(&prompt.Document{}, []builtin.Answer{{LL: -2, Greedy: true}})
	if err != nil || !finite || o.Items["perplexity"].X != -2 || o.Items["acc"].X != 1 {
		t.Errorf("%+v %v", o, err)
	}

	one := scorer(t, taskfile.LogLikelihood, "acc")
	o, finite, err = one.Likelihoods(&prompt.Document{}, []builtin.Answer{{LL: math.NaN()}})
	if err != nil || finite || len(o.Items) != 1 || o.Items["acc"].X != 0 {
		t.Errorf("%+v %v %v", o, finite, err)
	}
}

// TestResults: a function of the task's own gives the figures; one that it does not give is an error.
func TestResults(t *testing.T) {
	task := taskfile.Task{
		Name: "x", OutputType: taskfile.MultipleChoice,
		ProcessResults: &taskfile.Function{Known: "utils.process_results_mc2"},
		Metrics:        []taskfile.Metric{{Name: "acc"}},
	}
	doc, err := pyvalue.ParseJSON([]byte(`{"mc2_targets": {"labels": [1, 0]}}`))
	if err != nil {
		t.Fatal(err)
	}

	d := &prompt.Document{Doc: doc.(*pyvalue.Dict)}
	answers := []builtin.Answer{{LL: math.Log(3)}, {LL: math.Log(1)}}
	s, err := New(&task)
	if err != nil {
		t.Fatal(err)
	}
	if o, _, err := s.Likelihoods(d, answers); err != nil || math.Abs(o.Items["acc"].X-0.75) > 1e-15 {
		t.Errorf("%+v %v", o, err)
	}

	task.Metrics = []taskfile.Metric{{Name: "f1"}}
	if s, err = New(&task); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Likelihoods(d, answers); !errors.Is(err, ErrMetric) {
		t.Errorf("a figure that it does not give: %v", err)
	}
}

// TestGolds: numbers, texts, lists; what is no choice is never right, and what is neither is an error.
func TestGolds(t *testing.T) {
	choices := []string{"a", "b"}
	for _, c := range []struct {
		gold any
		want []int
		out  bool
	}{
		{int64(1), []int{1}, false},
		{"b", []int{1}, false},
		{"c", []int{outside}, true},
		{int64(2), []int{outside}, true},
		{int64(-1), []int{outside}, true},
		{true, []int{1}, false},
		{[]any{"a", int64(1)}, []int{0, 1}, false},
		{[]any{}, []int{outside}, true},
		{[]any{int64(0), int64(7)}, []int{0, outside}, true},
	} {
		d := &prompt.Document{Choices: choices, Gold: c.gold}
		got, err := golds(d)
		if err != nil || !slices.Equal(got, c.want) || OutOfRange(d) != c.out {
			t.Errorf("%v: %v, out of range %v (%v)", c.gold, got, OutOfRange(d), err)
		}
	}

	if _, err := golds(&prompt.Document{Choices: choices, Gold: 1.5}); !errors.Is(err, prompt.ErrDocument) {
		t.Error(err)
	}
	if OutOfRange(&prompt.Document{Choices: choices}) {
		t.Error("a document without a right choice")
	}
}

// TestBest: the first of the largest, never what is no number.
func TestBest(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(-1)
	for _, c := range []struct {
		lls  []float64
		n    int
		want int
	}{
		{[]float64{-1, -1}, 2, 0},
		{[]float64{nan, -1}, 2, 1},
		{[]float64{nan}, 1, -1},
		{nil, 2, -1},
		{[]float64{-3, -2, -1}, 2, 1},
		{[]float64{inf, inf}, 2, 0},
	} {
		var answers []builtin.Answer
		for _, v := range c.lls {
			answers = append(answers, builtin.Answer{LL: v})
		}
		if got := Best(answers, c.n); got != c.want {
			t.Errorf("%v of %d: %d, want %d", c.lls, c.n, got, c.want)
		}
	}
}

// TestSoftmax: probabilities that sum to one, also of likelihoods whose exponentials are all 0.
func TestSoftmax(t *testing.T) {
	for _, shift := range []float64{0, -2000} {
		p := softmax([]float64{shift + math.Log(1), shift + math.Log(3)})
		if math.Abs(p[0]-0.25) > 1e-12 || math.Abs(p[0]+p[1]-1) > 1e-15 {
			t.Errorf("shift %g: %v", shift, p)
		}
	}
}

// TestTexts: every filter scores the texts in its own way; without one the first text counts.
func TestTexts(t *testing.T) {
	args := func(text string) *pyvalue.Dict {
		v, err := pyvalue.ParseJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return v.(*pyvalue.Dict)
	}
	first := taskfile.Step{Function: "take_first", Args: args("{}")}
	task := taskfile.Task{
		Name: "x", OutputType: taskfile.GenerateUntil, Metrics: []taskfile.Metric{{Name: "exact_match"}},
		Filters: []taskfile.Filter{
			{Name: "strict", Steps: []taskfile.Step{
				{Function: "regex", Args: args(`{"regex_pattern": "#### (\\d+)"}`)}, first,
			}},
			{Name: "loose", Steps: []taskfile.Step{
				{Function: "regex", Args: args(`{"regex_pattern": "(\\d+)", "group_select": -1}`)}, first,
			}},
		},
	}

	s, err := New(&task)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Filters(), []string{"strict", "loose"}) {
		t.Errorf("%v", s.Filters())
	}

	out, err := s.Texts(&prompt.Document{Target: "7"}, []string{"3 and #### 5, no: 7"})
	if err != nil || out["strict"].Items["exact_match"].X != 0 || out["loose"].Items["exact_match"].X != 1 ||
		out["strict"].Filtered != "5" {
		t.Errorf("%+v %v", out, err)
	}

	task.Filters = nil
	if s, err = New(&task); err != nil {
		t.Fatal(err)
	}
	out, err = s.Texts(&prompt.Document{Target: "7"}, []string{"7", "8"})
	if err != nil || out[Unnamed].Items["exact_match"].X != 1 || s.Filters()[0] != Unnamed {
		t.Errorf("%+v %v", out, err)
	}
}

// TestNormal: what a metric ignores is taken off both sides: patterns first, then case, punctuation and numbers.
func TestNormal(t *testing.T) {
	p, err := filter.Compile(`,`)
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		rule       rule
		text, want string
	}{
		{rule{}, "A, 1!", "A, 1!"},
		{rule{Metric: taskfile.Metric{IgnoreCase: true}}, "ÄB", "äb"},
		{rule{Metric: taskfile.Metric{IgnorePunct: true}}, "a.b-c…", "abc…"}, // Python's string.punctuation is ASCII
		{rule{Metric: taskfile.Metric{IgnoreNumbers: true}}, "a1b2", "ab"},
		{rule{ignore: []*filter.Pattern{p}}, "1,234", "1234"},
	} {
		if got := c.rule.normal(c.text); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// TestLikelihoodFilters: a task without generated texts has one filter, take_first, under any name.
func TestLikelihoodFilters(t *testing.T) {
	filters := func(names ...string) []taskfile.Filter {
		var out []taskfile.Filter
		for _, n := range names {
			out = append(out, taskfile.Filter{
				Name: "f", Steps: []taskfile.Step{{Function: n, Args: pyvalue.NewDict()}},
			})
		}
		return out
	}

	for name, c := range map[string]struct {
		filters []taskfile.Filter
		want    error
	}{
		"none": {nil, nil}, "one": {filters("take_first"), nil}, "another": {filters("lowercase"), ErrMetric},
		"two": {filters("take_first", "take_first"), ErrMetric}, "unknown": {filters("guess"), filter.ErrUnknown},
	} {
		task := taskfile.Task{
			Name: "x", Path: "x.yaml", OutputType: taskfile.MultipleChoice, Filters: c.filters,
			Metrics: []taskfile.Metric{{Name: "acc"}},
		}
		s, err := New(&task)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), "x.yaml: task x: ") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && len(s.Filters()) != 1 {
			t.Errorf("%s: %v", name, s.Filters())
		}
	}
}
