package fitness

import (
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/lm/corpus"
)

// TestFalseAnswers: a measure that cannot be the answer to its task is none: an empty one, one of other cases or
// windows, one that is not finite or below zero, one whose mean is another.
func TestFalseAnswers(t *testing.T) {
	w := corpus.New([][]int32{{1, 2}, {3, 4}}, "x")
	j := &Judge{
		o:        Options{Settings: []Setting{{Sparsity: 0.5}, {Sparsity: 0.6}}},
		subjects: []*subject{{Subject: Subject{Search: w, Select: w, Test: w}}},
	}
	few, test := Task{Rung: Few, Metric: Dense}, Task{Rung: Test, Metric: Dense}
	windows := [][]float64{{1, 3}, {2, 4}}

	good := Measure{Values: []float64{2, 3}, Windows: windows}
	for _, c := range []struct {
		t Task
		m Measure
	}{
		{few, Measure{Values: []float64{2, 3}}},
		{test, good},
		{test, Measure{Rejected: "constant"}},
		{few, Measure{Values: []float64{0, 1}, NearTies: []int64{0, 1}}},
	} {
		if err := j.Answers(c.t, c.m); err != nil {
			t.Errorf("%+v: %v", c.m, err)
		}
	}

	for name, c := range map[string]struct {
		t Task
		m Measure
	}{
		"empty":            {few, Measure{}},
		"one value":        {few, Measure{Values: []float64{1}}},
		"not finite":       {few, Measure{Values: []float64{1, math.Inf(1)}}},
		"no number":        {few, Measure{Values: []float64{1, math.NaN()}}},
		"below zero":       {few, Measure{Values: []float64{1, -1}}},
		"windows":          {few, good},
		"no windows":       {test, Measure{Values: []float64{2, 3}}},
		"a case less":      {test, Measure{Values: []float64{2, 3}, Windows: windows[:1]}},
		"a window less":    {test, Measure{Values: []float64{2, 4}, Windows: [][]float64{{1, 3}, {4}}}},
		"another mean":     {test, Measure{Values: []float64{2, 2}, Windows: windows}},
		"rejected, and so": {test, Measure{Values: []float64{2, 3}, Rejected: "x"}},
		"near ties":        {few, Measure{Values: []float64{1, 1}, NearTies: []int64{1}}},
		"fewer than none":  {few, Measure{Values: []float64{1, 1}, NearTies: []int64{1, -1}}},
	} {
		if err := j.Answers(c.t, c.m); !errors.Is(err, ErrTask) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
