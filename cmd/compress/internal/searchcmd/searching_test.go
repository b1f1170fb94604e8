package searchcmd

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/stats"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/fitness"
)

func TestNamed(t *testing.T) {
	for _, c := range [][2]string{
		{"a/base", "base"},
		{"nano/base lab/base", "nano/base lab/base"},
		{"x/nano/base/ x/nano/tales", "base tales"},
		{"x/y x/y", "x/y x/y"},
	} {
		if got := strings.Join(named(strings.Fields(c[0])), " "); got != c[1] {
			t.Errorf("%s: %s, want %s", c[0], got, c[1])
		}
	}
}

func TestSettings(t *testing.T) {
	o := Options{Sparsity: []string{"0.5", " 0.6"}, Pattern: []string{"2:4", "unstructured"}}
	got, err := o.settings()
	want := []fitness.Setting{{Pattern: prune.Pattern{N: 2, M: 4}}, {Sparsity: 0.5}, {Sparsity: 0.6}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}

	for _, bad := range []Options{
		{Sparsity: []string{"0"}, Pattern: []string{"unstructured"}},
		{Sparsity: []string{"NaN"}, Pattern: []string{"unstructured"}},
		{Sparsity: []string{"0.5", "0.50"}, Pattern: []string{"unstructured"}},
		{Pattern: []string{"2:4", "2:4"}},
		{Pattern: []string{"none"}},
	} {
		if _, err := bad.settings(); !cli.IsUsage(err) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestNumbersOfZero: no generation is one of its own, and a population of none is refused, instead of meaning
// the defaults.
func TestNumbersOfZero(t *testing.T) {
	good := Options{
		Windows: 1, Few: 1, Choose: 2, Report: 2, Samples: 1, Blocks: 1, Keep: 1, Population: 2,
		Grammar: Paper,
	}
	if err := good.validate(1); err != nil {
		t.Fatal(err)
	}
	if o, err := good.search(gp.PaperGrammar(), 0); err != nil || o.Generations >= 0 {
		t.Errorf("%d generations: %v", o.Generations, err)
	}

	for name, change := range map[string]func(*Options){
		"population": func(o *Options) { o.Population = 0 }, "generations": func(o *Options) { o.Generations = -1 },
		"blocks": func(o *Options) { o.Blocks = 0 },
	} {
		bad := good
		change(&bad)
		if err := bad.validate(1); !cli.IsUsage(err) || !strings.Contains(err.Error(), "--"+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWindows: windows survive their way to a worker, and lengths that don't fit are refused.
func TestWindows(t *testing.T) {
	w := corpus.New([][]int32{{1, 2, 3}, {4}, {5, 6}}, "x")
	got, err := windows(flat(w))
	if diff := cmp.Diff(w.IDs, got); err != nil || diff != "" {
		t.Error(err, diff)
	}

	for _, lengths := range [][]int32{{4}, {-1}, {1, 3}} {
		if _, err := windows([]int32{1, 2, 3}, lengths); !errors.Is(err, jobs.ErrRefused) {
			t.Errorf("%v: %v", lengths, err)
		}
	}
}

// TestForeignWork: a damaged offer is refused, not guessed at; items that are no task are failures.
func TestForeignWork(t *testing.T) {
	if _, _, err := Serve(t.Context(), &workers.Worker{}, []byte("{")); !errors.Is(err, jobs.ErrRefused) {
		t.Errorf("%v", err)
	}
	for _, text := range []string{"", "{", `{"judge":"x","other":1}`} {
		if _, err := handler(nil)(context.Background(), jobs.Item{ID: "x", Data: []byte(text)}); !errors.Is(err,
			fitness.ErrTask) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestAgreement: correlations over the candidates that reached both rungs.
func TestAgreement(t *testing.T) {
	v := func(x float64) *float64 { return &x }
	list := []climb{
		{Climb: fitness.Climb{Layers: v(1), Few: v(1), Full: v(2)}},
		{Climb: fitness.Climb{Layers: v(2), Few: v(3)}},
		{Climb: fitness.Climb{Layers: v(3), Few: v(2), Full: v(1)}},
		{Climb: fitness.Climb{Layers: v(9)}},
		{quality: math.NaN()},
	}

	a := agreement(list)
	if len(a) != 2 || a[0].N != 3 || *a[0].Spearman != 0.5 || math.Abs(*a[0].Kendall-1.0/3) > 1e-12 || a[1].N != 2 ||
		*a[1].Spearman != -1 {
		t.Errorf("%+v", a)
	}

	if s := agreement(nil); s[0].Spearman != nil || !strings.Contains(s[0].String(), "too few") {
		t.Errorf("%v", s)
	}
}

// TestVerdicts: what a test is called, and how the page and the tables take a metric that failed.
func TestVerdicts(t *testing.T) {
	e, err := gp.Parse("W*sqrt(X)")
	if err != nil {
		t.Fatal(err)
	}

	test := func(metric string, diff, p float64) Tested {
		m := Tested{Metric: metric, Perplexity: 2, Versus: &stats.Versus{Difference: diff, Adjusted: p, Windows: 9}}
		m.judge(rivals("", gp.Grammar{}))
		return m
	}

	r := &Report{
		Winner: Finalist{Formula: e.String(), Tree: e}, Cases: []string{"m 0.5"},
		Test: []Case{{Name: "m 0.5", Windows: 9, Metrics: []Tested{
			{Metric: fitness.Dense, Loss: 1},
			test("wanda", 0.1, 0.01), test("ria", -0.1, 0.01),
			test("magnitude", 0.1, 0.2),
			{Metric: "pruner-zero", Failed: "scores are constant"},
		}}},
	}

	if m := test("wanda", math.NaN(), math.NaN()); m.Verdict != unclear {
		t.Errorf("a test without a result: %q", m.Verdict)
	}

	for rival, want := range map[string][3]int{
		"wanda": {1, 0, 0}, "ria": {0, 0, 1}, "magnitude": {0, 1, 0},
		"pruner-zero": {},
	} {
		won, same, lost := r.verdicts(rival)
		if got := [3]int{won, same, lost}; got != want {
			t.Errorf("%s: %v, want %v", rival, got, want)
		}
	}

	var page strings.Builder
	if err := r.Page().HTML(&page); err != nil || !strings.Contains(page.String(), "scores are constant") {
		t.Error(err)
	}

	text, err := json.Marshal(r)
	back := &Report{}
	if err == nil {
		err = json.Unmarshal(text, back)
	}

	if again, _ := json.Marshal(back); err != nil || string(again) != string(text) {
		t.Error("a report does not survive being written", err)
	}
	if !slices.Contains(rivals("", gp.Grammar{}), "wanda") {
		t.Error("no Wanda")
	}
}
