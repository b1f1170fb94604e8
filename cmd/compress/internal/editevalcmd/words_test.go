package editevalcmd

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/internal/jobs"
)

// TestTimesOfPeople: a time reads back as what it was, to a tenth of a second, a second or a minute.
func TestTimesOfPeople(t *testing.T) {
	for s, want := range map[float64]string{
		0: "0s", 9.94: "9.9s", 9.99: "10s", 59.6: "1m0s", 3599.4: "59m59s", 3600: "1h0m0s",
		3629: "1h0m0s", 3631: "1h1m0s",
	} {
		if got := seconds(s); got != want {
			t.Errorf("%g seconds: %s, want %s", s, got, want)
		}
	}
}

// TestRehearsalInWords: what a plan will take, to the letter, and that a busy machine is said to be one.
func TestRehearsalInWords(t *testing.T) {
	r := &Rehearsal{
		Plan: editeval.Plan{
			Editors: []editeval.Editor{
				{Name: "all", Method: "memit", Batch: -1},
				{Name: "one", Method: "ft", Batch: 1},
			},
			Seeds: []uint64{3, 4},
		},
		Records: 20, Counts: []int{1, 10}, Remarks: []string{"record 3: mind"}, Seconds: 5400,
		Estimates: []*editeval.Estimate{{
			Model: "m", Processors: 2, Threads: 4, CPU: 7200, Statistics: 12, Measure: 2.5, Edit: []float64{.5, .25},
			Sequences: 4, Edits: 40, Checks: 9, Total: 5400, Blocks: []int{1, 2}, StatTokens: 100,
			Tasks: []string{"facts"}, Documents: []int{30},
		}},
	}

	out, said := clitest.Show(t, func(j *cli.Job) { r.print(j) })
	want := `20 records of edits; counts 1 10; seeds 3 4
Sequences
model  editor  method  batch  seeds  edits  s/edit, about
─────────────────────────────────────────────────────────
m      all     memit   all        2     10            0.5
m      one     ft      1          2     10           0.25
Tasks, at every count
task   documents
────────────────
facts         30
m: 4 sequences, 40 edits, 9 measurements of 2.5s each, about 1h30m0s (12s for the covariance of keys of layers 1 2)
m: 2h0m0s of processor time, of 4 threads 2.0 processors are free
in all about 1h30m0s, one sequence after another; nothing was written
`
	if out != want {
		t.Errorf("have\n%s\nwant\n%s", out, want)
	}
	if said != "record 3: mind\nm: the machine is busy: when it is quiet, this takes about 30m0s\n" {
		t.Errorf("%s", said)
	}

	e := r.Estimates[0]
	e.StatTokens = 0
	e.CPU = 0
	e.Processors = 4
	e.Tasks = nil
	out, said = clitest.Show(t, func(j *cli.Job) { r.print(j) })
	if strings.Contains(out, "covariance") || strings.Contains(out, "processor time") ||
		strings.Contains(out, "Tasks") ||
		strings.Contains(said, "busy") {
		t.Errorf("%s%s", out, said)
	}
}

// TestCosts: seconds for each edit over all counts, and no processor time where a part of it is not known.
func TestCosts(t *testing.T) {
	cpu := func(s float64) *float64 { return &s }
	r := &editeval.Report{Timings: []editeval.UnitTimings{
		{Unit: editeval.Unit{Model: "m", Seed: 1}, EditorName: "ft", Restarts: 2, Timings: []editeval.Timing{
			{Edits: 1, Seconds: 2, CPU: cpu(3), Measured: 5}, {Edits: 3, Seconds: 4, CPU: cpu(9), Measured: 7},
		}},
		{Unit: editeval.Unit{Model: "m", Seed: 2}, EditorName: "ft", Timings: []editeval.Timing{
			{Edits: 1, Seconds: 2}, {Edits: 1, Seconds: 4, CPU: cpu(3)},
		}},
		{EditorName: "nothing was edited", Timings: []editeval.Timing{{Seconds: 9}}},
	}}

	table := cost(r)
	if len(table.Rows) != 2 {
		t.Fatalf("%v", table.Rows)
	}
	if want := []any{"m", "ft", 1, 4, 1.5, 3.0, 12.0, 2}; !slices.Equal(table.Rows[0], want) {
		t.Errorf("%v, want %v", table.Rows[0], want)
	}
	if want := []any{"m", "ft", 2, 2, 3.0, nil, 0.0, 0}; !slices.Equal(table.Rows[1], want) {
		t.Errorf("%v, want %v", table.Rows[1], want)
	}
}

// TestRetentionOfSeeds: the map of an editor is the mean over its seeds, with the names of its bins once.
func TestRetentionOfSeeds(t *testing.T) {
	sequence := func(editor string, first, second float64) editeval.SequenceReport {
		return editeval.SequenceReport{Editor: editor, Checkpoints: []editeval.CheckpointReport{
			{Edits: 1, Retention: []editeval.Bin{{From: 1, To: 1, Held: 1}}},
			{Edits: 10, Retention: []editeval.Bin{{From: 1, To: 1, Held: first}, {From: 2, To: 10, Held: second}}},
		}}
	}
	m := &editeval.ModelReport{Sequences: []editeval.SequenceReport{
		sequence("ft", .5, 1), sequence("rome", 0, 0), sequence("ft", 1, .25), sequence("ft", 1, .5),
	}}

	c := heat("ft", m)
	if strings.Join(c.Labels, " ") != "1 2–10" || len(c.Series) != 2 || c.Series[1].Name != "after 10" {
		t.Fatalf("%v %+v", c.Labels, c.Series)
	}
	if got := c.Series[1].Y; got[0] != .83 || got[1] != .58 || c.Series[0].Y[0] != 1 { // 2.5 and 1.75, of three
		t.Errorf("%v", got)
	}
	if got := heat("nobody", m); len(got.Series) != 0 || seeds("nobody", m) != 1 {
		t.Errorf("%+v", got)
	}
	if short("0123456789abcdefgh") != "0123456789abcdef" || short("ab") != "ab" {
		t.Error("hashes in tables")
	}
}

// TestCurvesOfEditors: a line for each editor and one for the unedited model, which is as wide as the counts and is
// missing where there is no such figure.
func TestCurvesOfEditors(t *testing.T) {
	r := study("m")
	value := func(row *editeval.Row) (float64, float64, float64) { return float64(row.Edits), 0, 1 }
	c := curves("title", "axis", r, &r.Models[0], value)
	if len(c.Series) != 2 || !slices.Equal(c.Series[0].X, []float64{1, 10}) ||
		!slices.Equal(c.Series[0].Y, []float64{1, 10}) ||
		!slices.Equal(c.Series[1].X, []float64{1, 10}) ||
		!slices.Equal(c.Series[1].Y, []float64{0, 0}) {
		t.Errorf("%+v", c.Series)
	}

	r.Counts = []int{10}
	if got := curves("", "", r, &r.Models[0], value).Series[1].X; !slices.Equal(got, []float64{5, 10}) {
		t.Errorf("a single count: %v", got)
	}
	none := func(row *editeval.Row) (float64, float64, float64) { return plain(editeval.Value(math.NaN())) }
	if got := curves("", "", r, &r.Models[0], none).Series; len(got) != 1 {
		t.Errorf("nothing to compare with: %+v", got)
	}
}

// TestNamesOfWork: pieces of work have names by which the plan knows them: others for another seed, and for a model
// without edits.
func TestNamesOfWork(t *testing.T) {
	seen := map[string]bool{}
	for _, it := range []item{
		{Base: "m"},
		{Base: "n"},
		{Unit: &editeval.Unit{Model: "m", Seed: 1}},
		{Unit: &editeval.Unit{Model: "m", Seed: 2}},
		{Unit: &editeval.Unit{Model: "m", Seed: 2, Editor: 1}},
	} {
		id := it.id()
		if seen[id] || id != it.id() || strings.HasPrefix(id, sequencePrefix) != (it.Unit != nil) ||
			it.model() == "" {
			t.Errorf("%+v is called %s", it, id)
		}
		seen[id] = true
	}

	plan := &editeval.Plan{
		Models:  []editeval.Model{{Name: "m"}, {Name: "n"}},
		Editors: []editeval.Editor{{Name: "ft"}},
		Seeds:   []uint64{1, 2},
	}
	list := itemsOf(plan, &editeval.Study{Plan: *plan})
	if len(list) != 6 || list[0].Base != "m" || list[1].Base != "n" || list[2].Unit == nil {
		t.Fatalf("%+v", list)
	}

	c := &team{plan: plan, study: &editeval.Study{Plan: *plan}}
	for _, it := range list {
		if got, err := c.find(jobs.Item{ID: it.id()}); err != nil || got.id() != it.id() {
			t.Errorf("%s: %+v, %v", it.id(), got, err)
		}
	}
	if _, err := c.find(jobs.Item{ID: "base-of-somebody"}); !errors.Is(err, jobs.ErrItem) {
		t.Error(err)
	}
}
