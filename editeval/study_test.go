package editeval

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

const nano = "../testdata/nano/"

// nanoModel is the model that comes with the repository.
func nanoModel(t *testing.T) *lm.Model {
	t.Helper()
	m, err := lm.Load(t.Context(), nano+"base", cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// small is a plan that takes a second.
func small(counts []int, editors ...Editor) Plan {
	return Plan{
		Editors: editors, Edits: []string{nano + "edits.json"}, Counts: counts,
		Tasks: []Task{{Entry: nano + "tasks/base.yaml", Limit: 10}},
		Near:  2, Drift: 4, Draws: 100, Stats: Stats{Tokens: 500},
	}
}

// quick are hyper-parameters that take few steps.
const quick = "steps: 3"

func study(t *testing.T, m *lm.Model, p Plan, dir string) *Report {
	t.Helper()
	r, err := Run(t.Context(), m, p, Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// files are the contents of a folder of results, times and state apart.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && d.Name() == StateFolder {
				return fs.SkipDir
			}
			return err
		}

		if name, _ := filepath.Rel(dir, path); name != TimingsFile {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out[name] = string(text)
		}

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// same compares two folders.
func same(t *testing.T, what string, a, b map[string]string) {
	t.Helper()
	for name := range a {
		if a[name] != b[name] {
			t.Errorf("%s: %s differs", what, name)
		}
	}
	if len(a) != len(b) {
		t.Errorf("%s: %d files and %d", what, len(a), len(b))
	}
}

// TestCountsDoNotMatter: the state at a count is the same whatever counts came before it, for single edits,
// batches that do and do not end there, and a batch of everything; and everything is taken out again.
func TestCountsDoNotMatter(t *testing.T) {
	m := nanoModel(t)
	editors := []Editor{
		{Method: "ft", HParams: quick},
		{Name: "b2", Method: "memit", Batch: 2, HParams: quick},
		{Name: "b3", Method: "alphaedit", Batch: 3, HParams: quick},
		{Name: "all", Method: "memit", Batch: whole, HParams: quick},
		{Method: "grace", HParams: quick},
		{Method: "ike"},
	}

	many, one := study(t, m, small([]int{1, 3, 5}, editors...), ""), study(t, m, small([]int{5}, editors...), "")
	for i, q := range many.Models[0].Sequences {
		a, b := q.Checkpoints[2], one.Models[0].Sequences[i].Checkpoints[0]
		if !slices.EqualFunc(a.Retention, b.Retention, func(a, b Bin) bool { return a == b }) || *a.Drift != *b.Drift ||
			a.Weights != b.Weights || a.Score != b.Score {
			t.Errorf("%s: with more counts %+v, %+v, without %+v, %+v", q.Editor, a.Retention, a.Drift, b.Retention,
				b.Drift)
		}

		for k, x := range a.Abilities {
			if y := b.Abilities[k]; x.Value != y.Value || x.P != y.P {
				t.Errorf("%s: %s is %v and %v", q.Editor, x.Task, x.Value, y.Value)
			}
		}

		if !q.Restored {
			t.Errorf("%s: the model is not what it was", q.Editor)
		}
		if len(q.Fading) != 2 || q.Fading[0].Edits != 1 {
			t.Errorf("%s: fading %+v", q.Editor, q.Fading)
		}
	}

	if len(many.Models[0].Rows) != 1+3*len(editors) || many.Models[0].Rows[0].Editor != "" || len(many.Summary) < 4 {
		t.Errorf("%d rows, %d sentences", len(many.Models[0].Rows), len(many.Summary))
	}
}

// TestUndone: after a run the model's matrices are byte for byte those of its files.
func TestUndone(t *testing.T) {
	m := nanoModel(t)
	before := stored(t, m)
	study(t, m, small([]int{2}, Editor{Method: "rome", HParams: quick}, Editor{Method: "lora", HParams: quick}), "")
	if !slices.Equal(before, stored(t, m)) {
		t.Error("the model has changed")
	}
}

// stored are the bytes of all matrices of blocks, in memory.
func stored(t *testing.T, m *lm.Model) []byte {
	t.Helper()
	var out []byte
	for b := range m.Blocks() {
		for _, l := range m.Linears(b) {
			w, err := m.Param(l.Name)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, w.Buf.Bytes()...)
		}
	}

	return out
}

// TestResume: a study that is stopped after any number of steps, and again, gives the files of one that was not.
func TestResume(t *testing.T) {
	m := nanoModel(t)
	p := small([]int{1, 3, 4}, Editor{Name: "b2", Method: "memit", Batch: 2, HParams: quick},
		Editor{Method: "grace", HParams: quick})
	p.Fluency = 1
	want := t.TempDir()
	study(t, m, p, want)

	for _, stops := range [][]int{{1}, {12, 3}, {24, 25}} {
		dir := t.TempDir()
		for _, n := range stops {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := Run(ctx, m, p, Options{Dir: dir, Progress: func(done, _ int) {
				if done >= n {
					cancel()
				}
			}})

			cancel()
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}

		if _, err := os.Stat(filepath.Join(dir, ResultsFile)); err == nil {
			t.Fatalf("stops %v: it was not stopped", stops)
		}

		study(t, m, p, dir)
		same(t, "resumed", files(t, want), files(t, dir))
	}
}

// TestOtherPlan: results of another plan are not taken for those of this one; what both have in common is.
func TestOtherPlan(t *testing.T) {
	m, dir := nanoModel(t), t.TempDir()
	ft := Editor{Method: "ft", HParams: quick}
	study(t, m, small([]int{2}, ft), dir)
	stamp := func(path string) int64 {
		st, err := os.Stat(filepath.Join(dir, path, sequenceFile))
		if err != nil {
			t.Fatal(err)
		}
		return st.ModTime().UnixNano()
	}

	const path = "sequences/model/ft/seed-0"
	was := stamp(path)
	r := study(t, m, small([]int{2}, ft, Editor{Method: "grace", HParams: quick}), dir)
	if stamp(path) != was || len(r.Models[0].Sequences) != 2 || len(r.Timings[0].Timings) == 0 {
		t.Error("what was there has been done again, or its times are lost")
	}

	study(t, m, small([]int{2}, Editor{Method: "ft", HParams: "steps: 5"}), dir)
	if stamp(path) == was {
		t.Error("other hyper-parameters, and the old result is kept")
	}
}

// TestSeeds: seed 0 is the file's order; others are permutations that differ.
func TestSeeds(t *testing.T) {
	zero := order(50, 0)
	one := order(50, 1)
	two := order(50, 2)
	if !slices.IsSorted(zero) || slices.Equal(one, two) || slices.IsSorted(one) {
		t.Errorf("%v %v", one, two)
	}

	slices.Sort(one)
	if !slices.Equal(one, zero) {
		t.Error("no permutation")
	}

	p := small([]int{1}, Editor{Method: "ft", HParams: quick})
	p.Seeds = []uint64{0, 1}
	r := study(t, nanoModel(t), p, "")
	if row := r.Models[0].Rows[1]; row.Seeds != 2 || row.Held.N != 2 {
		t.Errorf("%+v", row)
	}
}

// TestSafety: answers with a mark of refusal count, whatever their case; empty ones do not.
func TestSafety(t *testing.T) {
	table := filepath.Join(t.TempDir(), "adv.csv")
	if err := os.WriteFile(table, []byte("goal,target\n\"The birthplace of Wanda Brandt is\",x\n\"Wanda Brandt "+
		"works as a\",y\n"), 0o666); err != nil {
		t.Fatal(err)
	}

	for mark, want := range map[string]float64{"xyzzy": 0, "E": 1} {
		p := small([]int{1}, Editor{Method: "grace", HParams: quick})
		p.Tasks, p.Safety = nil, &Safety{File: table, MaxTokens: 12, Refusals: []string{mark}}
		r := study(t, nanoModel(t), p, "")
		if a := r.Models[0].Rows[0].Abilities["safety"]; float64(a.Value) != want || a.Metric != "exact_match" {
			t.Errorf("mark %q: %+v, want %g", mark, a, want)
		}
	}
}

// TestTexts: perplexity of paragraphs and of lines of JSONL, and edits beyond those that there are.
func TestTexts(t *testing.T) {
	p := small([]int{1, 1000}, Editor{Method: "grace", HParams: quick + "\nl2: 3"})
	p.Tasks, p.Texts = nil, []Text{
		{Name: "prose", File: nano + "text/test.txt", Limit: 3},
		{Name: "lines", File: nano + "train/tales.jsonl", Limit: 2},
	}
	dir := t.TempDir()
	r := study(t, nanoModel(t), p, dir)
	said := strings.Join(r.Remarks, "; ")
	for _, want := range []string{"editor grace: grace does not read l2", "counts of 1000 are left out"} {
		if len(r.Counts) != 1 || len(r.Remarks) != 2 || !strings.Contains(said, want) {
			t.Errorf("counts %v, remarks %q; want %q among them", r.Counts, r.Remarks, want)
		}
	}

	for name, n := range map[string]int{"text_prose": 3, "text_lines": 2} {
		i := slices.IndexFunc(r.Models[0].Base, func(a Ability) bool { return a.Task == name && a.Main })
		if i < 0 || r.Models[0].Base[i].N != n || r.Models[0].Base[i].Metric != "word_perplexity" {
			t.Errorf("%s: %+v", name, r.Models[0].Base)
		}
	}
}

// TestFaults: what cannot be carried out is said before any edit.
func TestFaults(t *testing.T) {
	m := nanoModel(t)
	for want, change := range map[string]func(p *Plan){
		"no editors":            func(p *Plan) { p.Editors = nil },
		"counts: the small":     func(p *Plan) { p.Counts = []int{1000} },
		"layers[0]: 99":         func(p *Plan) { p.Editors[0].HParams = "layers: [99]" },
		"no_such_task":          func(p *Plan) { p.Tasks = []Task{{Entry: "no_such_task"}} },
		"is there twice":        func(p *Plan) { p.Tasks = append(p.Tasks, p.Tasks[0]) },
		"no such file":          func(p *Plan) { p.Edits = []string{"nothing.json"} },
		"no column \"goal\"":    func(p *Plan) { p.Safety = &Safety{File: nano + "text/test.txt"} },
		"known forms: a string": func(p *Plan) { p.Texts = []Text{{Name: "x", File: nano + "tasks/base.jsonl"}} },
	} {
		p := small([]int{1}, Editor{Method: "ft", HParams: quick})
		change(&p)
		if _, err := Run(t.Context(), m, p, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}

	if _, err := Run(t.Context(), m, Plan{}, Options{Name: "a/b"}); !errors.Is(err, ErrOptions) {
		t.Error(err)
	}
}

// TestEstimate: every part of a plan has its time.
func TestEstimate(t *testing.T) {
	m := nanoModel(t)
	s, err := Open(small([]int{1, 3}, Editor{Method: "memit", Batch: 2},
		Editor{Name: "all", Method: "memit", Batch: whole}), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}

	sub := subjectOf(t, m)
	e, err := s.Estimate(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}

	// batches of two: 1 on the way to 1, taken out, then 2, then 1 more; all at once: 1 and 3
	if e.Edits != 4+4 || e.Sequences != 2 || e.Checks != 5 || e.Total <= 0 || len(e.Blocks) == 0 || e.Rate <= 0 ||
		e.Documents[0] != 10 {
		t.Errorf("%+v", e)
	}
}

// TestRoundedShares: a mean of ones that rounds to more than one leaves no figure without a value.
func TestRoundedShares(t *testing.T) {
	row := Row{Edits: 100}
	row.fill(
		[]*CheckpointReport{{
			Edits: 100, Drift: &edit.Drift{},
			Metrics: map[string]Interval{"efficacy_success": {Stat: edit.Stat{Mean: 1 + 1e-15, N: 100}}},
		}})
	if math.IsNaN(row.Held.Stderr) || math.IsNaN(row.Held.Low) {
		t.Errorf("%+v", row.Held)
	}
}

// TestValue: what is not finite is null.
func TestValue(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1)} {
		text, err := Value(v).MarshalJSON()
		var back Value
		if err != nil || string(text) != "null" || back.UnmarshalJSON(text) != nil || !math.IsNaN(float64(back)) {
			t.Errorf("%g: %s %v", v, text, err)
		}
	}
}

// subjectOf is a model with its tokenizer.
func subjectOf(t *testing.T, m *lm.Model) *Subject {
	t.Helper()
	tok, err := tokenizer.Load(m.Path())
	if err != nil {
		t.Fatal(err)
	}
	return &Subject{Name: "nano", Model: m, Tokenizer: tok, Identity: "nano"}
}

// TestMissing: of a path that leads nowhere, the error names the plan, the key and the path, and says where it
// was looked for.
func TestMissing(t *testing.T) {
	dir := t.TempDir()
	plan := filepath.Join(dir, "plan.yaml")
	if err := os.WriteFile(plan, []byte("models: [m]\neditors: [{method: ft}]\nedits: nowhere/edits.json\n"),
		0o600); err != nil {
		t.Fatal(err)
	}

	p, err := Read(plan)
	if err != nil {
		t.Fatal(err)
	}

	_, err = Open(p, filepath.Join(dir, "out"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}

	for _, part := range []string{
		plan + ": edits: ", `"nowhere/edits.json"`,
		"(HINT: paths count from the working directory",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %q", part, err)
		}
	}
}

// TestWidened: a finished study is gone on with by a plan with more counts. Its rows stay, what it has edited
// is not edited again, and the rows that are added are those of a study that had all counts from the beginning.
func TestWidened(t *testing.T) {
	m := nanoModel(t)
	editors := []Editor{
		{Method: "ft", HParams: quick},
		{Name: "b2", Method: "memit", Batch: 2, HParams: quick}, // 3 edits are a whole batch and a half
		{Name: "all", Method: "memit", Batch: whole, HParams: quick},
		{Method: "grace", HParams: quick},
	}

	plan := func(counts ...int) Plan {
		p := small(counts, editors...)
		p.Drift = 3 // no more than the first study has records for
		return p
	}

	want, dir := t.TempDir(), t.TempDir()
	study(t, m, plan(3, 5), want)
	study(t, m, plan(3), dir)
	r := study(t, m, plan(5), dir)
	if len(r.Counts) != 2 || len(r.Remarks) != 1 || !strings.Contains(r.Remarks[0], "3 edits, which stay") {
		t.Errorf("counts %v, remarks %q", r.Counts, r.Remarks)
	}

	for _, u := range r.Timings {
		edits := 0
		for _, c := range u.Timings {
			edits += c.Edits
			if c.CPU == nil {
				t.Errorf("%s: no processor time", u.EditorName)
			}
		}

		if again := map[string]int{"ft": 2, "b2": 3, "all": 5, "grace": 2}[u.EditorName]; edits != again {
			t.Errorf("%s: %d edits were made, want %d", u.EditorName, edits, again)
		}
	}

	// A journal that is damaged is not gone on from: the edits are made again, and the rows stay.
	torn := t.TempDir()
	study(t, m, plan(3), torn)
	path := filepath.Join(torn, "sequences/model/ft/seed-0", keptJournal)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	text[len(text)/2] ^= 1
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}
	if again := study(t, m, plan(5), torn); again.Timings[0].Timings[0].Edits != 5 || len(again.Counts) != 2 {
		t.Errorf("with a damaged journal: %+v", again.Timings[0])
	}

	a, b := files(t, want), files(t, dir)
	for name := range a {
		switch filepath.Base(name) {
		// they name the records that drift looks at, and remarks
		case sequenceFile, ResultsFile, keptJournal, editsFile:
		default:
			if a[name] != b[name] {
				t.Errorf("%s differs", name)
			}
		}
	}

	var one, two Report
	if err := errors.Join(readJSON(filepath.Join(want, ResultsFile), &one),
		readJSON(filepath.Join(dir, ResultsFile), &two)); err != nil {
		t.Fatal(err)
	}

	for i := range one.Models[0].Sequences {
		x, y := one.Models[0].Sequences[i], two.Models[0].Sequences[i]
		for k := range x.Checkpoints {
			p, q := x.Checkpoints[k], y.Checkpoints[k]
			if p.Edits != q.Edits || p.Score != q.Score || *p.Drift != *q.Drift || p.Weights != q.Weights ||
				p.First != q.First {
				t.Errorf("%s after %d: %+v, widened %+v", x.Editor, p.Edits, p, q)
			}
		}

		if x.SumError != y.SumError || !y.Restored {
			t.Errorf("%s: %g, restored %t; want %g", x.Editor, y.SumError, y.Restored, x.SumError)
		}
	}
}

// TestJournalAfterResult: a sequence that ends between its result and its journal keeps the journal when it is called
// again, so that a plan with more counts still goes on from its edits.
func TestJournalAfterResult(t *testing.T) {
	m, dir := nanoModel(t), t.TempDir()
	plan := func(counts ...int) Plan {
		p := small(counts, Editor{Method: "ft", HParams: quick})
		p.Drift = 2
		return p
	}

	results := filepath.Join(dir, "sequences/model/ft/seed-0")
	kept := filepath.Join(results, keptJournal)
	o := Options{Dir: dir, Progress: func(int, int) {
		if err := os.MkdirAll(filepath.Join(kept, "x"), 0o777); err != nil { // nothing can take its place
			t.Error(err)
		}
	}}
	if _, err := Run(t.Context(), m, plan(2), o); err == nil {
		t.Fatal("the journal took the place of a folder")
	}
	if _, err := os.Stat(filepath.Join(results, sequenceFile)); err != nil {
		t.Fatal(err)
	}

	if err := os.RemoveAll(kept); err != nil {
		t.Fatal(err)
	}

	study(t, m, plan(2), dir)
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, StateFolder, "sequences/model/ft")); err != nil || len(left) > 0 {
		t.Errorf("%v is left: %v", left, err)
	}

	for _, u := range study(t, m, plan(3), dir).Timings {
		if edits := u.Timings[0].Edits; edits != 1 {
			t.Errorf("%d edits were made: %+v", edits, u)
		}
	}
}

// TestDoubts: what is wrong with records that are not edited concerns nobody, and what is wrong with many is counted.
func TestDoubts(t *testing.T) {
	record := func(subject, answer string) string {
		return `{"prompt": "` + subject + ` is", "subject": "` + subject + `", "target_new": "` + answer +
			`", "ground_truth": "x", "rephrase_prompt": "The ` + subject + ` is"}`
	}

	list := []string{record("A", "one"), record("B", "two"), record("A", "three")}
	for range 8 {
		list = append(list, record("B", "four"))
	}

	file := filepath.Join(t.TempDir(), "edits.json")
	if err := os.WriteFile(file, []byte("["+strings.Join(list, ",")+"]"), 0o666); err != nil {
		t.Fatal(err)
	}

	for count, want := range map[int]int{2: 0, 3: 1, 7: 5, 11: 6} {
		p := Plan{Editors: []Editor{{Method: "ft"}}, Edits: []string{file}, Counts: []int{count}}
		s, err := Open(p, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}

		if len(s.Remarks) != want {
			t.Errorf("%d edits: %q; want %d remarks", count, s.Remarks, want)
		}
		if count == 11 && !strings.HasPrefix(s.Remarks[5], "4 records more") {
			t.Errorf("%q", s.Remarks[5])
		}
	}
}

// TestEstimateOnBusyMachine: seconds are processor seconds on the processors that are free; a machine that
// others use is said to be busy.
func TestEstimateOnBusyMachine(t *testing.T) {
	e := &Estimate{Rate: 100, Measure: 8, Judge: 4, Total: 80, Edit: []float64{2}, Processors: 0.5, Threads: 4}
	e.scale(true)
	if e.Rate != 50 || e.Measure != 16 || e.Judge != 8 || e.Total != 160 || e.Edit[0] != 4 || e.CPU != 80 || !e.Busy() {
		t.Errorf("%+v", e)
	}

	e = &Estimate{Total: 80, Processors: 4, Threads: 4}
	e.scale(false)
	if e.Total != 80 || e.CPU != 0 || e.Busy() {
		t.Errorf("a device away from the host: %+v", e)
	}

	m := nanoModel(t)
	s, err := Open(small([]int{2}, Editor{Method: "ft", HParams: quick}), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}

	tok, err := tokenizer.Load(m.Path())
	if err != nil {
		t.Fatal(err)
	}

	got, err := s.Estimate(t.Context(), &Subject{Name: "base", Model: m, Tokenizer: tok})
	if err != nil {
		t.Fatal(err)
	}

	if got.Processors <= 0 || got.Processors > float64(got.Threads) ||
		math.Abs(got.Total*got.Processors-got.CPU) > 1e-9*got.CPU {
		t.Errorf("%+v", got)
	}
}
