package score

import (
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/editeval/task/internal/builtin"
	"github.com/modelcompress/compress/editeval/task/internal/prompt"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
)

func scorer(t *testing.T, output string, metrics ...string) *Scorer {
	t.Helper()
	task := &taskfile.Task{Name: "x", OutputType: output}
	for _, m := range metrics {
		task.Metrics = append(task.Metrics, taskfile.Metric{Name: m})
	}

	s, err := New(task)
	if err != nil {
		t.Fatal(err)
	}

	return s
}

// The norms divide by characters and by bytes; a gold that is no choice is never right; of equal ones the first
// counts; a likelihood that is not a number is never the best.
func TestChoices(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		name    string
		choices []string
		lls     []float64
		gold    any
		want    [4]float64 // acc, acc_norm, acc_bytes, exact_match
		finite  bool
	}{
		// per character -2 and -1.83, per byte -1 and -1.83
		{"norms", []string{"éé", "abc"}, []float64{-4, -5.5}, int64(0), [4]float64{1, 0, 1, 1}, true},
		{"text", []string{"a", "b"}, []float64{-1, -2}, "b", [4]float64{0, 0, 0, 0}, true},
		{
			"list",
			[]string{"a", "b", "c"},
			[]float64{-3, -1, -2},
			[]any{int64(2), int64(1)},
			[4]float64{1, 1, 1, 0},
			true,
		},
		{"outside", []string{"a", "b"}, []float64{-1, -2}, int64(5), [4]float64{}, true},
		{"negative", []string{"a", "b"}, []float64{-1, -2}, int64(-1), [4]float64{}, true},
		{"no choice", []string{"a", "b"}, []float64{-1, -2}, "z", [4]float64{}, true},
		{"tie", []string{"a", "b"}, []float64{-1, -1}, int64(0), [4]float64{1, 1, 1, 1}, true},
		{"not finite", []string{"a", "b"}, []float64{nan, -2}, int64(0), [4]float64{0, 0, 0, 1}, false},
		{"nothing finite", []string{"a", "b"}, []float64{nan, nan}, int64(0), [4]float64{0, 0, 0, 1}, false},
	} {
		s := scorer(t, taskfile.MultipleChoice, "acc", "acc_norm", "acc_bytes", "exact_match")
		answers := make([]builtin.Answer, len(c.lls))
		for i, ll := range c.lls {
			answers[i] = builtin.Answer{LL: ll, Greedy: i == 0}
		}

		o, finite, err := s.Likelihoods(&prompt.Document{Choices: c.choices, Gold: c.gold}, answers)
		if err != nil {
			t.Fatal(err)
		}

		for i, m := range []string{"acc", "acc_norm", "acc_bytes", "exact_match"} {
			if got := o.Items[m].X; got != c.want[i] {
				t.Errorf("%s: %s %g, want %g", c.name, m, got, c.want[i])
			}
		}

		if finite != c.finite {
			t.Errorf("%s: finite %v", c.name, finite)
		}
	}
}

// Mutual information takes the likelihoods without a context off.
func TestMutual(t *testing.T) {
	s := scorer(t, taskfile.MultipleChoice, "acc_mutual_info", "brier_score")
	o, _, err := s.Likelihoods(&prompt.Document{Choices: []string{"a", "b"}, Gold: int64(1)},
		[]builtin.Answer{{LL: -1}, {LL: -2}, {LL: -1}, {LL: -5}})
	if err != nil || o.Items["acc_mutual_info"].X != 1 ||
		math.Abs(o.Items["brier_score"].Probs[0]-1/(1+math.Exp(-1))) > 1e-12 {
		t.Errorf("%+v %v", o, err)
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []taskfile.Task{
		{OutputType: taskfile.GenerateUntil, Metrics: []taskfile.Metric{{Name: "acc"}}},
		{OutputType: taskfile.Rolling, Metrics: []taskfile.Metric{{Name: "exact_match"}}},
	} {
		if _, err := New(&c); !errors.Is(err, ErrMetric) {
			t.Error(err)
		}
	}

	if _, err := New(&taskfile.Task{
		OutputType: taskfile.MultipleChoice,
		Metrics:    []taskfile.Metric{{Name: "acc", Aggregation: "mode"}},
	}); err == nil {
		t.Error("an unknown aggregation")
	}

	if _, err := New(&taskfile.Task{ProcessResults: &taskfile.Function{Known: "utils.mine"}}); !errors.Is(err,
		builtin.ErrUnknown) {
		t.Error(err)
	}
}

// Answers that no take_first has taken are a list, of which the part that is right counts; with several targets
// one of them may be.
func TestListedAnswers(t *testing.T) {
	rule := rule{}
	for _, c := range []struct {
		target, answer any
		want           float64
		refused        bool
	}{
		{"4", "4", 1, false},
		{int64(4), "4", 1, false},
		{"4", []any{"4"}, 1, false},
		{"4", []any{"4", "5", "4", "6"}, 0.5, false},
		{[]any{"4", "four"}, []any{"four"}, 1, false},
		{[]any{"4", "four"}, []any{"four", "4"}, 0, true},
		{int64(4), []any{"4"}, 0, true},
		{"4", []any{}, 0, true},
	} {
		got, err := rule.match(c.target, c.answer)
		if got != c.want || (err != nil) != c.refused {
			t.Errorf("%v %v: %g %v", c.target, c.answer, got, err)
		}
	}
}
