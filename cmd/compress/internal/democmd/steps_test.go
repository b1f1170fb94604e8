package democmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
)

// play runs the steps of a demo with a verb of the test's, and gives what came of it.
func play(t *testing.T, o Options, stages []stage, flags ...string) clitest.Said {
	t.Helper()
	return clitest.Run(t, func(j *cli.Job) (any, error) {
		d := &demo{job: j, o: o, began: time.Now()}
		if err := d.take(stages); err != nil {
			return nil, err
		}
		defer d.journal.Close()

		for _, s := range stages {
			d.left += s.weight(d.isDone)
		}

		times := make([]Stage, len(stages))
		for i, s := range stages {
			if err := d.stage(i, s, len(stages), &times[i]); err != nil {
				return nil, err
			}
		}
		return times, nil
	}, flags...)
}

// TestStepsGoOn: steps run in order, what is done is not run again unless its output is gone, what was left of a broken
// step is removed first, and a failure is told in the verb's own last words.
func TestStepsGoOn(t *testing.T) {
	out := filepath.Join(t.TempDir(), "my demo")
	var ran []string
	broken := "two"
	verb := func(_ context.Context, args []string, _, stderr io.Writer) int {
		ran = append(ran, args[0])
		path := filepath.Join(out, "search", args[0])
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s finds what an earlier run has left", args[0])
		}
		if err := os.WriteFile(path, []byte("x"), 0o666); err != nil {
			t.Error(err)
		}

		if args[0] == broken {
			fmt.Fprintf(stderr, "loading\ncompress %s: no luck\n", args[0])
			return 1
		}
		return 0
	}

	b := builder{dir: out}
	stages := []stage{{"search", "look", []step{
		b.step(1, "one @/x", "search/one"), b.step(2, "two", "search/two"), b.step(1, "three", "search/three"),
	}}}

	o := Options{Out: out, Verb: verb}
	said := play(t, o, stages)
	if said.Code != 1 || !errors.Is(said.Err, errStep) || !slices.Equal(ran, []string{"one", "two"}) {
		t.Fatalf("%+v after %q", said, ran)
	}
	for _, want := range []string{
		"1 of 1: look\n", "  $ compress one '" + out + "/x'\n", "  $ compress two\n",
		"a step of the demo failed: compress two: compress two: no luck (HINT: --resume goes on from here)",
	} {
		if !strings.Contains(said.Stderr, want) {
			t.Errorf("%q lacks %q", said.Stderr, want)
		}
	}

	if said := play(t, o, stages); said.Code != 2 || !strings.Contains(said.Stderr, "it holds a demo") {
		t.Errorf("without a flag: %+v", said)
	}

	ran = nil
	broken = ""
	o.Resume = true
	if said := play(t, o, stages); said.Code != 0 || !slices.Equal(ran, []string{"two", "three"}) {
		t.Errorf("resumed: %+v after %q", said, ran)
	}

	ran = nil
	if err := os.Remove(filepath.Join(out, "search", "one")); err != nil {
		t.Fatal(err)
	}
	if said := play(t, o, stages); said.Code != 0 || !slices.Equal(ran, []string{"one"}) {
		t.Errorf("an output is gone: %+v after %q", said, ran)
	}

	ran = nil
	if said := play(t, o, stages); said.Code != 0 || ran != nil || strings.Contains(said.Stderr, "1 of 1") {
		t.Errorf("nothing to do: %+v after %q", said, ran)
	}
	if said := play(t, o, stages, "--seed=4"); said.Code != 2 || !strings.Contains(said.Stderr, "another job") {
		t.Errorf("another seed: %+v", said)
	}

	o.Resume, o.Overwrite = false, true
	if said := play(t, o, stages, "--seed=4"); said.Code != 0 || len(ran) != 3 {
		t.Errorf("overwritten: %+v after %q", said, ran)
	}

	if err := os.WriteFile(filepath.Join(out, "thesis.tex"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if said := play(
		t,
		o,
		stages,
	); !errors.Is(said.Err, checkpoint.ErrTarget) ||
		!strings.Contains(said.Stderr, `"thesis.tex"`) {
		t.Errorf("a file of somebody else: %+v", said)
	}
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "report.json"), []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}
	if said := play(t, Options{Out: other, Overwrite: true}, stages); !errors.Is(said.Err, checkpoint.ErrTarget) ||
		!strings.Contains(said.Stderr, "it has no journal.jsonl") {
		t.Errorf("a report of another verb: %+v", said)
	}
}

// TestTimeOfSteps: what is left is by the weights of the steps that this run has done.
func TestTimeOfSteps(t *testing.T) {
	d := &demo{began: time.Now().Add(-10 * time.Second), left: 6}
	if got := d.eta(); got != "" {
		t.Errorf("before anything was measured: %q", got)
	}
	d.spent = 2
	if got := d.eta(); got != " (about 30s left)" {
		t.Errorf("%q", got)
	}
	if d.left = 0; d.eta() != " (about 1s left)" {
		t.Errorf("%q", d.eta())
	}
}

// TestLinesToCopy: command lines of a folder with blanks and quotes are those that a shell takes.
func TestLinesToCopy(t *testing.T) {
	b := builder{dir: "it's here"}
	if got := b.step(1, "merge @/a.yaml --out @/b").
		line(); got != `compress merge 'it'\''s here/a.yaml' --out 'it'\''s here/b'` {
		t.Error(got)
	}

	lines := (&Report{}).next("a b")
	if len(lines) != 3 || lines[0] != "compress inspect 'a b/prune/found-50'" ||
		!strings.HasPrefix(lines[1], "compress generate 'a b/merge/mediated' --prompt 'Long ago a proud crow'") ||
		!strings.HasSuffix(lines[2], " --sparsity 0.6 --out my-model") {
		t.Errorf("%q", lines)
	}

	for method, want := range map[string]string{
		"wanda": "wanda", "tree:x/best.json": "found", "tree:x.json/best.json+sparsegpt": "found+sparsegpt",
		"tree:x": "found",
	} {
		if got := methodName(method); got != want {
			t.Errorf("%s is called %s", method, got)
		}
	}
	for target, want := range map[string]string{"0.5": "50 %", "2:4": "2:4", "half": "half", "0.125": "12 %"} {
		if got := targetName(target); got != want {
			t.Errorf("%s is called %s", target, got)
		}
	}
}

// TestMeans: the mean of three accuracies, and the standard error of a mean of independent figures.
func TestMeans(t *testing.T) {
	e := func(x float64) *float64 { return &x }
	figures := map[string]Figure{
		"subtract": {Value: .3, Stderr: e(.03)}, "news": {Value: .6, Stderr: e(.04)}, "rumours": {Value: .9},
	}
	got := average(func(task string) Figure { return figures[task] })
	if math.Abs(got.Value-.6) > 1e-12 || math.Abs(*got.Stderr-.05/3) > 1e-12 {
		t.Errorf("%g ± %g", got.Value, *got.Stderr)
	}

	r := told(t)
	for i := range r.Scores {
		s := &r.Scores[i]
		if s.Model == "ties" {
			s.Tasks["news"] = Figure{Value: .9}
		}
		if s.Model == mediated {
			s.Tasks["news"] = Figure{Value: 1}
		}
	}
	if got := r.bestStatic(); got != "ties" {
		t.Errorf("the best static merge is %s", got)
	}
	if got := r.expertMean(); math.Abs(got.Value-.3) > 1e-12 { // tasks 4, 2 and 3 of told: .4, .2 and .3
		t.Errorf("experts, each on its own task: %g", got.Value)
	}
}

// TestFrontOfAnyPoints: no point beats one of the front in both coordinates, every point that is not on it is beaten or
// equalled, and the front goes down.
func TestFrontOfAnyPoints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Map(rapid.IntRange(0, 6), func(n int) float64 { return float64(n) })
		var points [][2]float64
		for range rapid.IntRange(1, 12).Draw(t, "points") {
			points = append(points, [2]float64{number.Draw(t, "x"), number.Draw(t, "y")})
		}

		series := split(points)
		all, front := series[0], series[1]
		if len(all.X) != len(points) || !front.Joined || all.Joined {
			t.Fatalf("%+v", series)
		}

		for i := range front.X {
			for _, p := range points {
				if p[0] <= front.X[i] && p[1] <= front.Y[i] && (p[0] < front.X[i] || p[1] < front.Y[i]) {
					t.Fatalf("%v beats (%g, %g)", p, front.X[i], front.Y[i])
				}
			}
			if i > 0 && (front.X[i] <= front.X[i-1] || front.Y[i] >= front.Y[i-1]) {
				t.Fatalf("%v, %v", front.X, front.Y)
			}
		}

		for _, p := range points {
			if !slices.ContainsFunc(
				seq(len(front.X)),
				func(i int) bool { return front.X[i] <= p[0] && front.Y[i] <= p[1] },
			) {
				t.Fatalf("%v is beaten by no point of the front", p)
			}
		}
	})
}

func seq(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// TestSectionsOfFigures: losses are averaged over ten steps, verdicts are said of the second model with regard to which
// way is better, and matrices stand in the order in which they work.
func TestSectionsOfFigures(t *testing.T) {
	r := told(t)
	for range 20 {
		r.Adapt[0].Steps = append(r.Adapt[0].Steps, struct {
			Loss float64 `json:"loss"`
		}{float64(len(r.Adapt[0].Steps))})
	}

	curve := r.adapted().Charts[0].Series[0] // 3, 1, 2, 3, …, 21
	if len(curve.Y) != 22 || curve.Y[0] != 3 || curve.Y[1] != 2 || curve.Y[2] != 2 || curve.Y[21] != 16.5 ||
		curve.X[21] != 22 {
		t.Errorf("%v", curve.Y)
	}

	p := func(x float64) *float64 { return &x }
	r.Tests = []Test{
		{B: "up", Task: "add", Metric: "acc", Difference: .2, P: p(1e-4)},
		{B: "down", Task: "add", Metric: "acc", Difference: -.2, P: p(1e-4)},
		{B: "fewer bits", Task: "tales", Metric: "bits_per_byte", Difference: -.2, P: p(1e-4)},
		{B: "by chance", Task: "other", Metric: "acc", Difference: .2, P: p(.01)},
		{B: "the same", Task: "add", Metric: "acc", P: p(0)},
		{B: "no test", Task: "add", Metric: "acc", Difference: .2},
	}
	rows := r.tested().Tables[0].Rows
	for i, want := range []string{"better", "worse", "better", "", "", ""} {
		if rows[i][9] != want {
			t.Errorf("%s is %q, want %q", rows[i][1], rows[i][9], want)
		}
	}
	if rows[2][2] != "tales ↓" || rows[3][2] != "other" || rows[5][8] != "" {
		t.Errorf("%v", rows)
	}

	var c Conflict
	for i, name := range []string{"1.mlp.down_proj", "0.self_attn.v_proj", "1.self_attn.q_proj", "0.norm"} {
		g := Group{Name: "model.layers." + name + ".weight", Layer: int(name[0] - '0')}
		g.Excess.Disagree = float64(i + 1)
		c.Tensors = append(c.Tensors, g)
	}
	h := roles(c)
	if len(h.Series) != 2 || h.Series[0].Name != "1" || fmt.Sprint(h.Series[0].Y) != "[3 0 0 0 0 0 1]" ||
		fmt.Sprint(h.Series[1].Y) != "[0 0 2 0 0 0 0]" {
		t.Errorf("%+v", h.Series)
	}
}
