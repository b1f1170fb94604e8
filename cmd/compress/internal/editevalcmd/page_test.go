package editevalcmd

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/editeval/edit"
)

// study is a small report, of models of these names.
func study(names ...string) *editeval.Report {
	row := func(editor string, edits int, held, value float64, lost int) editeval.Row {
		r := editeval.Row{
			Editor: editor, Edits: edits, Seeds: 1, Paraphrase: editeval.Value(math.NaN()),
			Abilities: map[string]editeval.RowAbility{
				"facts": {Metric: "acc", HigherIsBetter: true, Value: editeval.Value(value), Lost: lost},
			},
		}
		r.Held.Mean = held
		return r
	}

	r := &editeval.Report{
		Plan:   editeval.Plan{Editors: []editeval.Editor{{Name: "ft", Method: "ft", Batch: 1}}, Seeds: []uint64{0}},
		Counts: []int{1, 10}, Records: 60, Summary: []string{"It <b>holds</b>."}, Contract: "1",
	}
	for _, name := range names {
		r.Models = append(r.Models, editeval.ModelReport{
			Name: name,
			Rows: []editeval.Row{row("", 0, 0, 0.9, 0), row("ft", 1, 1, 0.9, 0), row("ft", 10, 0.8, 1e6, 1)},
			Sequences: []editeval.SequenceReport{{Editor: "ft", Batch: 1, Checkpoints: []editeval.CheckpointReport{{
				Edits: 10, Drift: &edit.Drift{KL: 1}, Retention: []editeval.Bin{{From: 1, To: 10, Held: 0.8}},
				Abilities: []editeval.Ability{{Task: "facts", Metric: "acc", Main: true, Lost: true, N: 40}},
			}}}},
		})
	}
	return r
}

// TestPage: the page stands by itself, quotes what it shows, and names models where there are several.
func TestPage(t *testing.T) {
	for _, names := range [][]string{{"one"}, {"one", "two"}} {
		text, err := html(study(names...))
		if err != nil {
			t.Fatal(err)
		}

		page := string(text)
		for _, want := range []string{
			"Which edits hold", "What else the model", "It &lt;b&gt;holds&lt;/b&gt;.", "<span>Edits</span>",
			"<span>Abilities</span>", "Figures and their tests: facts acc.",
		} {
			if !strings.Contains(page, want) {
				t.Errorf("%v: no %q", names, want)
			}
		}
		for _, bad := range []string{"http://", "https://", "<script", "NaN", "<b>holds"} {
			if strings.Contains(page, bad) {
				t.Errorf("%v: %q in it", names, bad)
			}
		}
		if several := strings.Contains(page, "two: Which edits hold"); several != (len(names) > 1) {
			t.Errorf("%v: named %v", names, several)
		}
	}
}

// TestTable: a row for every editor and count, the unedited model first; what is significantly worse is marked, and
// figures of a collapsed model stay short.
func TestTable(t *testing.T) {
	r := study("one")
	var out strings.Builder
	if err := Table(r, &r.Models[0]).Markdown(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| none | 0 |", "| ft | 1 |", "1e+06 \\*", "| 0.900 |"} {
		got := strings.Join(strings.Fields(out.String()), " ")
		if !strings.Contains(got, want) && !strings.Contains(got, strings.ReplaceAll(want, "\\", "")) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "left out") {
		t.Error("a column for what does not happen")
	}

	r.Models[0].Rows[2].Failed = 3
	out.Reset()
	if err := Table(r, &r.Models[0]).Markdown(&out); err != nil || !strings.Contains(out.String(), "left out") {
		t.Errorf("no column of what was left out: %v", err)
	}
}

// TestWords: times, batches and bins for people, and which charts need a logarithmic axis.
func TestWords(t *testing.T) {
	for s, want := range map[float64]string{0.04: "0s", 1.26: "1.3s", 75.4: "1m15s", 7200.4: "2h0m0s"} {
		if got := seconds(s); got != want {
			t.Errorf("%g: %s, want %s", s, got, want)
		}
	}
	if batch(-1) != "all" || batch(3) != "3" || spaced([]int{1, 2}) != "1 2" || yes(true) != "yes" || yes(false) != "" {
		t.Error(batch(-1), batch(3), spaced([]int{1, 2}))
	}
	if span(editeval.Bin{From: 3, To: 3}) != "3" || span(editeval.Bin{From: 1, To: 5}) != "1–5" {
		t.Error(span(editeval.Bin{From: 1, To: 5}))
	}
	if cell(editeval.Value(math.NaN())) != nil || cell(2) != 2.0 {
		t.Error(cell(2))
	}
}

// TestTake: a folder of results is taken once at a time, kept for --resume, emptied by --overwrite, and never taken
// where it holds something else.
func TestTake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "study")
	p, err := take(&Options{Out: dir})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := take(&Options{Out: dir, Resume: true}); !errors.Is(err, cli.ErrBusy) {
		t.Errorf("a second time: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, editeval.ResultsFile), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := p.release(); err != nil {
		t.Fatal(err)
	}

	if _, err := take(&Options{Out: dir}); !errors.Is(err, checkpoint.ErrExists) {
		t.Errorf("without a flag: %v", err)
	}
	for _, o := range []Options{{Out: dir, Resume: true}, {Out: dir, Overwrite: true}} {
		p, err := take(&o)
		if err != nil {
			t.Fatal(err)
		}
		_, err = os.Stat(filepath.Join(dir, editeval.ResultsFile))
		if kept := err == nil; kept != o.Resume {
			t.Errorf("%+v: results kept: %v", o, kept)
		}
		if err := p.release(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a run that has measured nothing leaves something: %v", err)
	}

	for _, name := range []string{"thesis.tex", "plan.yaml"} {
		other := t.TempDir()
		if err := os.WriteFile(filepath.Join(other, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := take(&Options{Out: other, Overwrite: true}); !errors.Is(err, checkpoint.ErrTarget) {
			t.Errorf("a folder with %s: %v", name, err)
		}
	}
}

// TestAbsolute: a plan for workers elsewhere has whole paths, but for names of tasks; the plan itself stays as it is.
func TestAbsolute(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("x.yaml", nil, 0o666); err != nil {
		t.Fatal(err)
	}

	p := editeval.Plan{
		Models: []editeval.Model{{Name: "m", Path: "m", Adapter: "a"}, {Name: "n", Path: "/n"}},
		Edits:  []string{"e.json"},
		Tasks:  []editeval.Task{{Entry: "x.yaml"}, {Entry: "arc_easy"}}, File: filepath.Join(dir, "plan.yaml"),
	}
	q, err := absolute(p)
	if err != nil {
		t.Fatal(err)
	}

	if q.Models[0].Path != filepath.Join(dir, "m") || q.Models[0].Adapter != filepath.Join(dir, "a") ||
		q.Models[1].Path != "/n" || q.Models[1].Adapter != "" || q.Edits[0] != filepath.Join(dir, "e.json") ||
		q.Tasks[0].Entry != filepath.Join(dir, "x.yaml") || q.Tasks[1].Entry != "arc_easy" || q.Data[0] != dir {
		t.Errorf("%+v", q)
	}
	if p.Models[0].Path != "m" || p.Tasks[0].Entry != "x.yaml" || len(p.Data) != 0 {
		t.Errorf("the plan has changed: %+v", p)
	}
}

// TestInputs: everything that a plan names; a plan with faults names nothing.
func TestInputs(t *testing.T) {
	paths, tasks, data := Inputs("p.yaml", []byte("models: [m]\neditors: [ft]\nedits: e.json\ncounts: [1]\n"+
		"tasks: [t]\ndata: d\nstats: s.txt\n"))
	if got := strings.Join(paths, " "); !strings.Contains(got, "m e.json d") || !strings.Contains(got, "s.txt") ||
		strings.Join(tasks, " ") != "t" || strings.Join(data, " ") != "d" {
		t.Errorf("%v %v %v", paths, tasks, data)
	}
	if paths, _, _ := Inputs("p.yaml", []byte("editors: [ft]\n")); paths != nil {
		t.Errorf("%v", paths)
	}
	if err := CheckPlan("p.yaml", []byte("colour: red\n")); !cli.IsUsage(err) {
		t.Error(err)
	}
}
