package prunecmd

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/prune"
)

func TestParseMethods(t *testing.T) {
	got, err := ParseMethods(" magnitude,pruner-zero@owl+sparsegpt, expr:min(W,G)+X,expr:(W*X)+admm")
	want := []Method{
		{"magnitude", "magnitude", "", ""},
		{"pruner-zero@owl+sparsegpt", "pruner-zero", "owl", "sparsegpt"},
		{"expr:min(W,G)+X", "expr:min(W,G)+X", "", ""},
		{"expr:(W*X)+admm", "expr:(W*X)", "", "admm"},
	}

	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}

	for _, bad := range []string{"", ",", "wanda,,ria", "wanda, ", ",wanda", "wanda,ria,wanda"} {
		if _, err := ParseMethods(bad); !errors.Is(err, ErrEntry) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestParseTargets(t *testing.T) {
	got, err := ParseTargets("0.5, 2:4,0")
	want := []Target{{"0.5", 0.5, prune.Unstructured}, {"2:4", 0, "2:4"}, {"0", 0, prune.Unstructured}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}

	for _, bad := range []string{"", "0.5,,2:4", "1", "NaN", "-0.1", "x", "0.5,0.5"} {
		if _, err := ParseTargets(bad); !errors.Is(err, ErrEntry) {
			t.Errorf("%q: %v", bad, err)
		}
	}

	if _, err := ParseTargets("4:2"); !errors.Is(err, prune.ErrOptions) {
		t.Error(err)
	}
}

func sample() *ContestReport {
	return &ContestReport{Model: "m", Dense: Measure{Perplexity: 2, Windows: []float64{1, 1, 1}}, Runs: []Run{
		{
			Method: "a", Target: "0.5", Measure: Measure{Perplexity: 3, NLL: 1.1, Windows: []float64{1.0, 1.1, 1.2}},
			Sparsity: 0.5,
		},
		{
			Method: "b", Target: "0.5", Measure: Measure{Perplexity: 4, NLL: 1.4, Windows: []float64{1.2, 1.4, 1.6}},
			Sparsity: 0.5,
		},
		{
			Method: "c", Target: "0.5", Measure: Measure{Perplexity: 3, NLL: 1.2, Windows: []float64{1.1, 1.2, 1.3}},
			Sparsity: 0.5,
		},
		{Method: "a", Target: "2:4", Measure: Measure{Perplexity: 90, NLL: 4, Windows: []float64{4}}, Sparsity: 0.5},
		{Method: "b", Target: "2:4", Measure: Measure{Perplexity: 95, NLL: 5, Windows: []float64{5}}, Sparsity: 0.5},
		{
			Method: "a", Target: "0.3", Measure: Measure{Perplexity: 30, NLL: 3, Windows: []float64{3, 3, 3}},
			Sparsity: 0.3,
		},
	}}
}

func TestJudge(t *testing.T) {
	r := sample()
	r.judge()
	// b - a is 0.2, 0.3, 0.4: mean 0.3, standard error 0.1/√3, t = 5.196 with 2 degrees, p = 0.0351; c - a is
	// 0.1 throughout.
	b := r.Runs[1].Versus
	if b == nil || b.Best != "a" || math.Abs(b.T-3*math.Sqrt(3)) > 1e-9 || math.Abs(b.P-0.0351) > 1e-4 {
		t.Errorf("b: %+v", b)
	}

	c := r.Runs[2].Versus
	if c == nil || c.P > 1e-9 || math.Abs(c.Difference-0.1) > 1e-12 || c.Adjusted > 1e-9 || b.Adjusted != b.P {
		t.Errorf("c: %+v, b: %+v", c, b)
	}

	for _, i := range []int{0, 3, 4, 5} {
		if r.Runs[i].Versus != nil {
			t.Errorf("run %d is tested: %+v", i, r.Runs[i].Versus)
		}
	}
}

// TestInterval: the difference to the best has an interval around it, by hand for three windows: 0.1, 0.2 and
// 0.3 more, a mean of 0.2 with an error of 0.1/√3, and a t of 4.3027 with two degrees of freedom.
func TestInterval(t *testing.T) {
	r := &ContestReport{Runs: []Run{
		{Target: "0.5", Method: "a", Measure: Measure{NLL: 2, Windows: []float64{1, 2, 3}}},
		{Target: "0.5", Method: "b", Measure: Measure{NLL: 2.2, Windows: []float64{1.1, 2.2, 3.3}}},
	}}

	r.judge()
	if r.Runs[0].Interval != nil {
		t.Error("the best has an interval")
	}

	got, half := r.Runs[1].Interval, 4.302653*0.1/math.Sqrt(3)
	if got == nil || math.Abs(got[0]-(0.2-half)) > 1e-6 || math.Abs(got[1]-(0.2+half)) > 1e-6 {
		t.Errorf("%v, want 0.2 ± %g", got, half)
	}
}

func TestShow(t *testing.T) {
	r := sample()
	r.judge()
	if n := len(r.Table().Rows); n != 7 {
		t.Errorf("%d rows", n)
	}

	charts := r.charts()
	if len(charts) != 2 || !charts[0].Y.Log || cmp.Diff(charts[0].Series[0].X, []float64{0, 30, 50}) != "" ||
		len(charts[1].Labels) != 2 {
		t.Errorf("%+v", charts)
	}

	var b bytes.Buffer
	if err := r.Page().HTML(&b); err != nil || !strings.Contains(b.String(), "Perplexity against sparsity") {
		t.Error(err)
	}
}

func TestRunAndResume(t *testing.T) {
	dir, model := filepath.Join(t.TempDir(), "out"), t.TempDir()
	var did []string
	work := func(method string) Work {
		return Work{Method: method, Target: "2:4", Key: "key-of-" + method, Do: func(folder string, r *Run) error {
			did = append(did, filepath.Base(folder))
			r.NLL = 1
			return os.Mkdir(folder, 0o777)
		}}
	}

	broken := work("broken")
	broken.Do = func(string, *Run) error { return errors.ErrUnsupported }
	c := &Contest{
		Dir: dir, Job: "job", Note: t.Logf, Work: []Work{work("a"), broken, work("expr:W*X")},
		Dense: func() (Measure, error) {
			did = append(did, "dense")
			return Measure{Perplexity: 2}, nil
		},
	}

	if err := c.Run(t.Context(), &ContestReport{}); !errors.Is(err, errors.ErrUnsupported) ||
		!strings.HasPrefix(err.Error(), "2:4, broken: ") {
		t.Errorf("a broken run: %v", err)
	}

	c.Work[1] = work("b")
	r := &ContestReport{}
	if err := c.Run(t.Context(), r); err != nil || len(r.Runs) != 3 || r.Resumed != 1 || r.Dense.Perplexity != 2 {
		t.Errorf("%v: %+v", err, r)
	}
	if diff := cmp.Diff([]string{"dense", "2-4-a", "2-4-b", "2-4-expr-W_X-key-of-e"}, did); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(dir, modelsFolder)); err == nil {
		t.Error("the folder of models stays")
	}

	for _, c := range []struct{ resume, overwrite, ok bool }{
		{false, false, false},
		{true, false, true},
		{false, true, true},
	} {
		if err := CheckContest(dir, model, c.resume, c.overwrite); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}

	other := &Contest{Dir: dir, Job: "another"}
	if err := other.Run(t.Context(), &ContestReport{}); !errors.Is(err, ErrOtherJob) {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine.txt"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := CheckContest(dir, model, false, true); !errors.Is(err, checkpoint.ErrTarget) {
		t.Errorf("a folder with something else: %v", err)
	}
}

// TestKeptModels: a kept model of which a file has changed, been cut or lost since is made again, and one that
// is as it was is not.
func TestKeptModels(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	var did, said []string
	names := []string{"config.json", "tokenizer.json", "model.safetensors"}
	work := func(method string) Work {
		return Work{Method: method, Target: "2:4", Key: "key-of-" + method, Do: func(folder string, r *Run) error {
			did = append(did, method)
			err := os.Mkdir(folder, 0o777)
			for _, name := range names {
				err = errors.Join(err, os.WriteFile(filepath.Join(folder, name), []byte(name+" of "+method), 0o666))
			}
			return err
		}}
	}

	c := &Contest{
		Dir: dir, Job: "job", Keep: true, Work: []Work{work("a"), work("b")},
		Dense: func() (Measure, error) { return Measure{}, nil },
		Note:  func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) },
	}

	again := func() string {
		t.Helper()
		did, said = nil, nil
		if err := c.Run(t.Context(), &ContestReport{}); err != nil {
			t.Fatal(err)
		}
		return strings.Join(did, " ")
	}

	if got := again(); got != "a b" {
		t.Fatal(got)
	}
	if got := again(); got != "" {
		t.Error("made again without need:", got)
	}

	for _, name := range names {
		path := filepath.Join(dir, modelsFolder, "2-4-b", name)
		for _, damage := range []func() error{
			func() error { return os.WriteFile(path, []byte(strings.ToUpper(name)+" of b"), 0o666) },
			func() error { return os.Truncate(path, 3) },
			func() error { return os.Remove(path) },
		} {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			if got := again(); got != "b" || !strings.Contains(strings.Join(said, "\n"), path+": "+errChanged.Error()) {
				t.Errorf("%s: %q, %q", name, got, said)
			}
		}
	}
}
