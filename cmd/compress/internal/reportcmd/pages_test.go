package reportcmd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

func write(t testing.TB, name, text string) string {
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

const pruned = `{"command": "compress prune", "options": {"metric": "wanda", "sparsity": 0.5}, "perplexity": {"after": {"ppl": 2.25, "data": {"seqlen": 9}}},
	"tensors": [{"name": "q0", "block": 0, "role": "q", "sparsity": 0.5}, {"name": "q1", "block": 1, "role": "q", "sparsity": 0.25}], "seconds": 3}`

func TestFiguresAndCharts(t *testing.T) {
	r, err := Read(write(t, "wanda.json", pruned))
	if err != nil {
		t.Fatal(err)
	}

	if r.title() != "compress prune" || r.name != "wanda" || len(r.Tables) != 1 || len(r.charts) != 1 {
		t.Errorf("%+v", r)
	}
	if c := r.charts[0]; fmt.Sprintf("%v %s %v", c.Labels, c.Series[0].Name, c.Series[0].Y) != "[0 1] q [0.5 0.25]" {
		t.Errorf("heat map of %v %v", c.Labels, c.Series)
	}

	side := SideBySide([]*Run{r, {name: "empty"}})
	var b bytes.Buffer
	if err := side.CSV(&b); err != nil {
		t.Fatal(err)
	}
	if want := "run,perplexity.after.ppl,options.sparsity,seconds\nwanda,2.25,0.5,3\nempty,,,\n"; b.String() != want {
		t.Errorf("side by side:\n%s", b.String())
	}
}

func TestPageOfSeveralRuns(t *testing.T) {
	var runs []*Run
	for _, steps := range []string{
		`[{"step": 1, "loss": 3.5}, {"step": 2, "loss": 2.5}]`, `[]`, `[1, 2]`, `[[], {}]`,
		`"x"`,
	} {
		r, err := Read(write(t, "run.json", `{"command": "compress <b>", "ppl": 2, "steps": `+steps+`}`))
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r)
	}

	var b bytes.Buffer
	if err := Page(runs, SideBySide(runs)).HTML(&b); err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{"Side by side", "compress &lt;b&gt;", "<path class=\"stroke"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// TestEvaluationsAndJobs: the tasks of an evaluation side by side, and the jobs of a plan without their command lines.
func TestEvaluationsAndJobs(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "results.json"),
		[]byte(`{"results": {"base": {"acc,none": 0.6, "acc_stderr,none": 0.05, "sample_len": 90}}}`),
		0o666); err != nil {
		t.Fatal(err)
	}

	a, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}

	b, err := Read(
		write(t, "run.json",
			`{"command": "compress run", "plan": "p.yaml", "jobs": [{"name": "prune", "state": "done", "seconds": 1.5, "report": "prune.json", "command": "compress prune m", "log": "l", "key": "k"},
		{"name": "eval", "state": "failed", "seconds": 2, "report": "eval.json"}]}`))
	if err != nil {
		t.Fatal(err)
	}

	side := SideBySide([]*Run{a, b})
	var text bytes.Buffer
	if err := side.CSV(&text); err != nil || !strings.HasPrefix(text.String(), "run,base acc\n") ||
		!strings.HasSuffix(text.String(), ",0.6\nrun,\n") {
		t.Errorf("%v: %s", err, text.String())
	}

	if jobs := b.Tables[0]; len(jobs.Columns) != 4 || jobs.Rows[1][1] != "failed" || jobs.Rows[0][3] != "prune.json" {
		t.Errorf("%+v", jobs)
	}

	text.Reset()

	if err := Page([]*Run{a, b}, side).HTML(&text); err != nil ||
		!strings.Contains(text.String(), `<th scope="row">base acc</th>`) {
		t.Errorf("%v: %s", err, text.String())
	}
}

func TestLongTablesAreCut(t *testing.T) {
	rows := strings.TrimSuffix(strings.Repeat(`{"name": "t", "zeros": 1},`, maxRows+5), ",")
	r, err := Read(write(t, "r.json", `{"tensors": [`+rows+`]}`))
	if err != nil || len(r.Tables[0].Rows) != maxRows || !strings.Contains(r.Tables[0].Note, fmt.Sprint(maxRows+5)) {
		t.Errorf("%v: %d rows, note %q", err, len(r.Tables[0].Rows), r.Tables[0].Note)
	}
}

// FuzzRead: no report, however odd, stops the page.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		pruned, `{}`, `{"a": [{"name": {}}]}`,
		`{"a": [{"block": "x", "role": 1, "sparsity": []}, 5]}`,
		strings.Repeat(`{"a":`, 50) + "1" + strings.Repeat("}", 50),
	} {
		f.Add([]byte(s))
	}

	path := filepath.Join(f.TempDir(), "r.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		defer fuzzlimit.Watch(t, len(data))()

		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}

		r, err := Read(path)
		if err != nil {
			return
		}

		if err := Page([]*Run{r, r}, SideBySide([]*Run{r, r})).HTML(&bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestJobs: behind the report of a run come those of its jobs that are done, from the run's own folder,
// wherever it was when it ran.
func TestJobs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"report.json": `{"command": "compress run", "seconds": 1, "jobs": [{"name": "small", "state": "done", "report": "/elsewhere/out/small.report.json"},
			{"name": "lost", "state": "kept", "report": "out/lost.report.json"}, {"name": "broken", "state": "failed", "report": "out/broken.report.json"}]}`,
		"small.report.json": pruned, "broken.report.json": "{",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	runs, err := ReadAll(dir)
	if err != nil || len(runs) != 2 || runs[1].name != "small" {
		t.Fatalf("%v, %v", runs, err)
	}

	var b bytes.Buffer
	if err := SideBySide(runs).CSV(&b); err != nil || !strings.Contains(b.String(), "perplexity") ||
		!strings.Contains(b.String(), "2.25") {
		t.Errorf("%v %s", err, b.String())
	}

	if err := os.WriteFile(filepath.Join(dir, "small.report.json"), []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadAll(dir); err == nil || !strings.Contains(err.Error(), "small.report.json") {
		t.Error(err)
	}
}

// TestTwice: a key that is given twice, at whatever depth, is an error that names its place; neither value is shown.
func TestTwice(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": 1, "a": 2}`:                    `key "a" is given twice`,
		`{"x": {"y": {"a": 1, "a": 2}}}`:      `x.y: not a JSON object: key "a" is given twice`,
		`{"x": [{"a": 1}, {"a": 1, "a": 2}]}`: `x[1]: not a JSON object: key "a" is given twice`,
	} {
		if _, err := Read(write(t, "twice.json", text)); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "twice.json") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestApart: runs of the same name are called by as much of their paths as tells them apart.
func TestApart(t *testing.T) {
	runs := []*Run{
		{name: "scores", path: "a/dense/scores"},
		{name: "scores", path: "b/dense/scores"},
		{name: "scores", path: "scores"},
		{name: "other", path: "a/other"},
	}
	apart(runs)
	for i, want := range []string{"a/dense/scores", "b/dense/scores", "scores", "other"} {
		if runs[i].name != want {
			t.Errorf("run %d is called %q, want %q", i, runs[i].name, want)
		}
	}

	// The same run twice has one name.
	twice := []*Run{{name: "x", path: "d/x"}, {name: "x", path: "d/x"}}
	apart(twice)
	if twice[0].name != "d/x" || twice[1].name != "d/x" {
		t.Errorf("%q and %q", twice[0].name, twice[1].name)
	}
}
