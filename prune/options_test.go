package prune

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParsePattern(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := rapid.IntRange(2, 64).Draw(rt, "m")
		p := Pattern{N: rapid.IntRange(1, m-1).Draw(rt, "n"), M: m}
		if back, err := ParsePattern(p.String()); err != nil || back != p {
			rt.Fatalf("%s reads as %v, %v", p, back, err)
		}
	})

	for _, s := range []string{"", "unstructured"} {
		if p, err := ParsePattern(s); err != nil || p.Structured() {
			t.Errorf("%q: %v, %v", s, p, err)
		}
	}

	for _, s := range []string{"2", "2:", ":4", "0:4", "4:4", "5:4", "-1:4", "2:4:8", "two:four", "0:0"} {
		if p, err := ParsePattern(s); !errors.Is(err, ErrOptions) {
			t.Errorf("%q is read as %v", s, p)
		}
	}

	if got := (Pattern{1, 4}).Meaning(); got != "the 1 lowest of every 4 consecutive inputs go, 3 stay" {
		t.Error(got)
	}
}

func TestValidateReturnsEveryFault(t *testing.T) {
	err := Options{
		Metric: Metric{Name: "x"}, Sparsity: 1, Pattern: Pattern{5, 4}, Group: "column", BatchTokens: -1,
		Allocation: Allocation{Name: "beta"},
	}.Validate()

	for _, part := range []string{
		"needs a name and a Score", "sparsity 1", "pattern 5:4", `"column"`, "-1 tokens",
		`"beta"`, "known: uniform, owl",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v\nlacks %q", err, part)
		}
	}

	for _, o := range []Options{
		{Sparsity: -.1},
		{Sparsity: math.NaN()},
		{Sparsity: .6, Pattern: Pattern{2, 4}},
		{Group: Layer, Pattern: Pattern{2, 4}},
		{Allocation: Allocation{M: 3}},
		{Allocation: Allocation{Name: OWL, Lambda: -1}},
		{Allocation: Allocation{Name: OWL, M: math.Inf(1)}},
	} {
		if err := o.Validate(); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}

	for _, o := range []Options{
		{},
		{Sparsity: .5},
		{Pattern: Pattern{2, 4}},
		{Pattern: Pattern{1, 4}, Sparsity: .25, Group: Row},
		{Group: Layer, Metric: Wanda()},
		{Allocation: Allocation{Name: OWL}, Sparsity: .7},
	} {
		if err := o.Validate(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestMetricByName(t *testing.T) {
	for _, name := range MetricNames() {
		if m, err := MetricByName(name); err != nil || m.Name != name || m.Score == nil {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
	if _, err := MetricByName("wand"); !errors.Is(err, ErrUnknown) ||
		!strings.Contains(err.Error(), "magnitude, wanda") {
		t.Errorf("%v", err)
	}
}

func TestOptionsSurviveJSON(t *testing.T) {
	o := Options{
		Metric: Magnitude(), Pattern: Pattern{4, 8}, Group: Row,
		Allocation: Allocation{Name: OWL, M: 5, Lambda: .1},
	}
	o.setDefaults()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}

	var back Options
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.Metric.Name != "magnitude" || back.Metric.Score == nil {
		t.Errorf("metric: %+v", back.Metric)
	}

	o.Metric, back.Metric = Metric{}, Metric{}
	if !reflect.DeepEqual(o, back) {
		t.Errorf("%s gives %+v", text, back)
	}
}
