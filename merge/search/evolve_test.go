package search

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

const example = `merge_method: linear
models:
- model: a
  parameters: {weight: {search: [0, 1], name: w}}
- model: b
  parameters:
    weight:
    - {filter: mlp, value: [{search: [-1, 3]}, 0.5]}
    - value: {search: [0, 1], name: w}
parameters: {lambda: {search: [0.01, 100], scale: log, start: 2}}
`

func TestSpaceOfARecipe(t *testing.T) {
	s, err := parseOpen("recipe.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}

	want := []Variable{
		{Name: "w", Low: 0, High: 1, Start: 0.5},
		{Name: "models[1].parameters.weight[0].value[0]", Low: -1, High: 3, Start: 1},
		{Name: "parameters.lambda", Low: 0.01, High: 100, Start: 2, Log: true},
	}

	if fmt.Sprint(s.Variables) != fmt.Sprint(want) {
		t.Errorf("%+v", s.Variables)
	}

	got := string(s.Recipe([]float64{0.25, -0.125, 3}))
	if want := `merge_method: linear
models:
  - model: a
    parameters:
      weight: 0.25
  - model: b
    parameters:
      weight:
        - filter: mlp
          value: [-0.125, 0.5]
        - value: 0.25
parameters:
  lambda: 3
`; got != want {
		t.Errorf("%s", got)
	}

	if _, err := recipe.Parse("x", []byte(got), nil); err != nil {
		t.Error(err)
	}
}

func TestMessages(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\n": "r:1:1: the recipe leaves no number open; write {search: [low, high]} " +
			"in place of one",
		"a: {search: [1, 0]}\n": "r:1:13: search [1, 0] leaves nothing to " +
			"find; the lower bound comes first",
		"a: {search: 1}\n": "r:1:13: search must be a list, not \"1\"",
		"a: {search: [1, 2, 3]}\n": "r:1:13: search must be [low, high], " +
			"not 3 numbers",
		"a: {search: [0, 1], stat: 1}\n":  `r:1:21: unknown key "stat" in an open number; did you mean "start"?`,
		"a: {search: [0, 1], start: 2}\n": "r:1:28: start 2 lies outside of [0, 1]",
		"a: {search: [0, 1], scale: log}\n": "r:1:5: a logarithmic scale needs bounds " +
			"above 0, not 0",
		"a: {search: [0, 1], name: w}\nb: {search: [0, 2], name: w}\n": `r:2:5: "w" has another range or start elsewhere in the recipe`,
		"a: {search: [0, 1], scale: cubic}\n":                          `r:1:28: scale must be one of linear, log, not "cubic"`,
	} {
		_, err := parseOpen("r", []byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("%q:\n%v\nwant\n%s", text, err, want)
		}
	}
}

// space is a recipe of n open numbers between -2 and 2, away from the middle at the start.
func space(t testing.TB, n int) *openRecipe {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "x%d: {search: [-2, 2], start: -1}\n", i)
	}
	s, err := parseOpen("r", []byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// on rates candidates by a function of the numbers.
func on(f func(x []float64) float64) Rate { return local(scored(f), 1) }

// scored makes a score of a function of the numbers.
func scored(f func(x []float64) float64) scoring {
	return func(_ context.Context, text []byte) (float64, error) {
		src, err := strictyaml.Parse("r", text)
		if err != nil {
			return 0, err
		}

		var x []float64
		for _, e := range src.Documents[0].Entries {
			v, _ := e.Value.Number()
			x = append(x, v)
		}

		return f(x), nil
	}
}

func rosenbrock(x []float64) float64 {
	sum := 0.0
	for i := 0; i+1 < len(x); i++ {
		sum += 100*math.Pow(x[i+1]-x[i]*x[i], 2) + math.Pow(1-x[i], 2)
	}
	return sum
}

func ellipsoid(x []float64) float64 {
	sum := 0.0
	for i, v := range x {
		sum += math.Pow(1000, float64(i)/float64(len(x)-1)) * (v - 0.3) * (v - 0.3)
	}
	return sum
}

// TestSearchFindsMinima: of functions whose axes differ by a factor of thousand, or bend, so that the
// covariance has to adapt.
func TestSearchFindsMinima(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		f         func([]float64) float64
		n, rounds int
	}{
		"ellipsoid": {ellipsoid, 6, 120}, "rosenbrock": {rosenbrock, 4, 200},
		"one variable": {func(x []float64) float64 { return math.Abs(x[0] - 1.5) }, 1, 40},
		"at a bound":   {func(x []float64) float64 { return -x[0] - x[1] + 4 }, 2, 80},
	} {
		r, err := evolve(context.Background(), space(t, c.n), on(c.f), settings{generations: c.rounds, seed: 1})
		if err != nil {
			t.Fatal(name, err)
		}

		if !(r.Score < 1e-3) {
			t.Errorf("%s: %v at %v", name, r.Score, r.Values)
		}
	}
}

// TestSearchNeverEndsAboveItsStart: whatever the function, the best is the least of all scores, and inside the bounds.
func TestSearchNeverEndsAboveItsStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Float64Range(-5, 5).Draw(t, "a"), rapid.Float64Range(-5, 5).Draw(t, "b")
		f := func(x []float64) float64 { return math.Sin(a*x[0])*math.Cos(b*x[1]) + a*x[1] }
		s, err := parseOpen("r", []byte("x: {search: [-1, 2]}\ny: {search: [0.5, 8], scale: log}\n"))
		if err != nil {
			t.Fatal(err)
		}

		r, err := evolve(context.Background(), s, on(f),
			settings{
				generations: 3, seed: rapid.Uint64().Draw(t, "seed"),
				sigma: rapid.Float64Range(0.01, 1).Draw(t, "sigma"),
			})
		if err != nil {
			t.Fatal(err)
		}

		for _, step := range r.Steps {
			if step.Score < r.Score || step.Values[0] < -1 || step.Values[0] > 2 || step.Values[1] < 0.5 ||
				step.Values[1] > 8 {
				t.Fatalf("best %v, step %+v", r.Score, step)
			}
		}

		if r.Score > r.Start {
			t.Fatalf("%v above the start's %v", r.Score, r.Start)
		}
	})
}

// encode makes results comparable.
func encode(t testing.TB, r *outcome) string {
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + string(r.Recipe)
}

// journaled evolves three numbers with the journal at path, which it continues.
func journaled(t testing.TB, path string, rate Rate, o settings) (*outcome, error) {
	t.Helper()
	journal, old, err := openJournal(path, "job", true)
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()

	o.old = old
	o.note = func(s Step) error { return journal.Add(s) }
	return evolve(context.Background(), space(t, 3), rate, o)
}

// TestSearchIsTheSameInEveryWay: with any number of workers, and from every point of an interruption.
func TestSearchIsTheSameInEveryWay(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	o := settings{generations: 6, seed: 5}
	first, err := journaled(t, filepath.Join(dir, "first"), on(ellipsoid), o)
	if err != nil {
		t.Fatal(err)
	}

	want := encode(t, first)
	full, err := os.ReadFile(filepath.Join(dir, "first"))
	if err != nil {
		t.Fatal(err)
	}

	backwards := func(ctx context.Context, recipes [][]byte, done func(int, Rating) error) error {
		for k := len(recipes) - 1; k >= 0; k-- {
			r, err := scored(ellipsoid).rating(ctx, recipes[k])
			if err == nil {
				err = done(k, r)
			}
			if err != nil {
				return err
			}
		}

		return nil
	}

	for name, rate := range map[string]Rate{
		"two": local(scored(ellipsoid), 2), "seven": local(scored(ellipsoid), 7),
		"backwards": backwards,
	} {
		path := filepath.Join(dir, name)
		r, err := journaled(t, path, rate, o)
		lines, _ := os.ReadFile(path)
		if err != nil || encode(t, r) != want || !bytes.Equal(lines, full) {
			t.Errorf("%s: %v", name, err)
		}
	}

	for cut := 0; cut <= len(full); cut += 97 {
		path := filepath.Join(dir, fmt.Sprint(cut))
		if err := os.WriteFile(path, full[:cut], 0o666); err != nil {
			t.Fatal(err)
		}

		tries := 0
		counted := func(ctx context.Context, text []byte) (float64, error) {
			tries++
			return scored(ellipsoid)(ctx, text)
		}

		r, err := journaled(t, path, local(counted, 1), o)
		if err != nil || encode(t, r) != want {
			t.Fatalf("resumed after %d bytes: %v", cut, err)
		}

		if steps := max(0, bytes.Count(full[:cut], []byte("\n"))-1); tries != len(first.Steps)-steps {
			t.Errorf("resumed after %d bytes: %d tries", cut, tries)
		}
	}

	o.seed = 6
	if _, err := journaled(t, filepath.Join(dir, "first"), on(ellipsoid), o); !errors.Is(err, ErrJournal) {
		t.Errorf("a journal of another seed: %v", err)
	}
}

// TestJournalRefuses: a journal of another search, a damaged one and one of an earlier build, which had no checksums,
// are refused with one line and stay as they are.
func TestJournalRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	journal, _, err := openJournal(path, "job", false)
	if err != nil {
		t.Fatal(err)
	}
	for k := range 3 {
		if err := journal.Add(Step{Candidate: k, Values: []float64{1}, Score: 2}); err != nil {
			t.Fatal(err)
		}
	}
	if err := journal.Close(); err != nil {
		t.Fatal(err)
	}

	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	if _, _, err := openJournal(path, "job", false); !errors.Is(err, merge.ErrExists) {
		t.Errorf("not to be continued: %v", err)
	}
	if _, _, err := openJournal(path, "other", true); !errors.Is(err, ErrJournal) {
		t.Errorf("another search: %v", err)
	}

	for name, text := range map[string]string{
		"damage":        strings.Replace(string(whole), `"score":2`, `"score":1`, 1),
		"earlier build": "{\"job\":\"job\"}\n{\"generation\":0,\"candidate\":0,\"values\":[1],\"score\":2}\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, _, err := openJournal(path, "job", true); !errors.Is(err, ErrJournal) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadFile(path); err != nil || string(left) != text {
			t.Errorf("%s: the journal was changed: %v", name, err)
		}
	}
}

func TestFailedCandidatesAreTheWorst(t *testing.T) {
	f := func(_ context.Context, text []byte) (float64, error) {
		x, err := scored(func(x []float64) float64 { return x[0] })(context.Background(), text)
		switch {
		case x < -1.5:
			return 0, fmt.Errorf("%w: too small", errCandidate)
		case x < -1.2:
			return math.NaN(), nil
		}
		return x, err
	}

	r, err := evolve(context.Background(), space(t, 1), local(f, 1), settings{generations: 30, seed: 2})
	if err != nil || !(r.Score >= -1.2 && r.Score < -1.19) {
		t.Errorf("%v %+v", err, r)
	}

	broken := errors.New("disk")
	if _, err := evolve(context.Background(), space(t, 1),
		local(func(context.Context, []byte) (float64, error) { return 0, broken }, 1), settings{}); !errors.Is(err,
		broken) {
		t.Errorf("%v", err)
	}

	if _, err := evolve(context.Background(), space(t, 1),
		local(func(context.Context, []byte) (float64, error) { return 0, errCandidate }, 1),
		settings{generations: 2}); !errors.Is(err, ErrScore) {
		t.Errorf("%v", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := evolve(ctx, space(t, 1), on(ellipsoid), settings{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// FuzzParse: whatever the text, a space parses to one whose recipe is read again, or to an error.
func FuzzParse(f *testing.F) {
	f.Add(example)
	f.Add("a: &x {search: [0, 1]}\nb: *x\n---\nc: [{search: [1, 2], scale: log}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()

		s, err := parseOpen("x", []byte(text))
		if (s == nil) == (err == nil) {
			t.Fatalf("%v %v", s, err)
		}

		if s == nil {
			return
		}
		if _, err := strictyaml.Parse("x", s.Recipe(s.Start())); err != nil {
			t.Fatalf("%v\n%s", err, s.Recipe(s.Start()))
		}
	})
}

// TestOptions: what is out of range is refused with one error of its kind, what is not a number too.
func TestOptions(t *testing.T) {
	for _, o := range []settings{
		{generations: -1},
		{population: 3},
		{sigma: -1},
		{sigma: 2},
		{sigma: math.NaN()},
		{sigma: math.Inf(1)},
	} {
		err := o.validate()
		if !errors.Is(err, merge.ErrOption) || strings.Count(err.Error(), merge.ErrOption.Error()) != 1 {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := (settings{}).validate(); err != nil {
		t.Error(err)
	}
}

// TestOneFault: bounds that are no numbers are one fault, not others that follow from it.
func TestOneFault(t *testing.T) {
	for _, text := range []string{
		"{search: [0, .inf]}", "{search: [.nan, 1], scale: log}",
		"{search: [.inf, 1], start: 3}", "{search: [2, 1], start: 3}", "{search: [1]}",
	} {
		_, err := parseOpen("r.yaml", []byte("a: {search: [0, 1]}\nb: "+text+"\n"))
		var p *strictyaml.Problems
		if !errors.As(err, &p) || len(p.List) != 1 {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestCheck: a candidate is the recipe with other numbers within their bounds, and nothing else is one.
func TestCheck(t *testing.T) {
	text := "merge_method: linear\nmodels:\n  - model: a\n    parameters: {weight: {search: [0, 1], name: w}}\n  - " +
		"model: b\n    parameters: {weight: {search: [0, 1], name: w}}\n"
	s, err := parseOpen("recipe.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	good := string(s.Recipe([]float64{0.25}))
	if err := s.Check([]byte(good)); err != nil {
		t.Error(err)
	}

	for _, bad := range []string{
		"", text, good + "---\nmerge_method: linear\n", good + "# x\n", string(s.Recipe([]float64{1.5})),
		string(s.Recipe([]float64{math.NaN()})),
		strings.Replace(good, "0.25", "0.5", 1), strings.Replace(good, "0.25", "0.250", 2),
		strings.Replace(good, "a", "c", 1),
	} {
		if err := s.Check([]byte(bad)); err == nil {
			t.Errorf("%q is a candidate", bad)
		}
	}
}
