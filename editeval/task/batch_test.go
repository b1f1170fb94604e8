package task

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/stage"
)

// nanoPlan evaluates two models on two tasks.
func nanoPlan(t *testing.T) *Plan {
	t.Helper()
	p, err := ParsePlan("plan.yaml", []byte("models: ["+nano+"/base, {name: other, path: "+nano+"/base}]\n"+
		"tasks: ["+nano+"/tasks/base.yaml, "+nano+"/tasks/subtract.yaml]\nlimit: 4\nbootstrap_iters: -1\n"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// opener gives the same model under every name of a plan, and counts.
func opener(t *testing.T, of *opened, count *int) func(context.Context, PlanModel) (*BatchModel, error) {
	return func(_ context.Context, m PlanModel) (*BatchModel, error) {
		*count++
		return &BatchModel{Model: of.m, Tokenizer: of.tok, Identity: "nano " + m.Name}, nil
	}
}

// tree is what a folder holds, by path; results without what differs from run to run.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}

		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		if filepath.Base(path) == ResultsFile {
			var r Results
			if err := json.Unmarshal(text, &r); err != nil {
				return err
			}
			r.Date = 0
			r.Start = 0
			r.End = 0
			r.Seconds = ""
			for _, a := range r.Audits {
				a.Cached = 0
			}
			if text, err = json.Marshal(r); err != nil {
				return err
			}
		}

		name, err := filepath.Rel(dir, path)
		files[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	return files
}

// TestBatch: a batch that is interrupted after every run, or of which a run was damaged meanwhile, gives the files of
// one that was not; another plan, or a finished folder, is refused.
func TestBatch(t *testing.T) {
	dir := t.TempDir()
	of := open(t, nano+"/base")
	count := 0
	whole := filepath.Join(dir, "whole")
	r, err := RunBatch(t.Context(), nanoPlan(t), whole, opener(t, of, &count), nil, BatchOptions{})
	if err != nil {
		t.Fatal(err)
	}

	// The same model twice: no difference.
	if rows := r.Against["other"]; len(rows) == 0 || rows[0].Difference != 0 || rows[0].N != 4 || r.Reused != 0 {
		t.Errorf("%+v", r)
	}
	if count != 4 {
		t.Errorf("models were opened %d times, not twice each", count)
	}

	want := tree(t, whole)
	for _, name := range []string{comparisonFile, "base/base/results.json", "other/subtract/samples_subtract.jsonl"} {
		if want[name] == "" {
			t.Errorf("no %s in %v", name, slices.Sorted(maps.Keys(want)))
		}
	}

	out := filepath.Join(dir, "out")
	o := BatchOptions{Resume: true}
	stop := errors.New("stop")
	for _, opens := range []int{2, 3} { // before the first run, and between those of the two models
		left := opens
		_, err := RunBatch(t.Context(), nanoPlan(t), out, func(ctx context.Context, m PlanModel) (*BatchModel, error) {
			if left--; left < 0 {
				return nil, stop
			}
			return opener(t, of, &count)(ctx, m)
		}, nil, o)
		if !errors.Is(err, stop) {
			t.Fatalf("after %d models: %v", opens, err)
		}
	}

	other := nanoPlan(t)
	other.Limit = 5
	if _, err := RunBatch(t.Context(), other, out, opener(t, of, &count), nil, o); !errors.Is(err, ErrOtherBatch) {
		t.Errorf("another plan: %v", err)
	}

	hidden := filepath.Join(dir, ".out.batch")
	if err := os.WriteFile(filepath.Join(hidden, "base", "base", ResultsFile), []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}

	var notes []string
	o.Note = func(text string) { notes = append(notes, text) }
	if r, err = RunBatch(t.Context(), nanoPlan(t), out, opener(t, of, &count), nil, o); err != nil {
		t.Fatal(err)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "base: damaged since it was written; the run is done again") {
		t.Errorf("%q", notes)
	}
	if r.Reused != 1 {
		t.Errorf("%d runs reused", r.Reused)
	}

	got := tree(t, out)
	delete(got, comparisonFile) // which says how many runs were reused
	delete(want, comparisonFile)
	if !maps.Equal(got, want) {
		t.Errorf("%v, not %v, or other texts", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}

	if _, err := OpenBatch(nanoPlan(t), out, o); !errors.Is(err, ErrFinishedBatch) {
		t.Errorf("a finished one: %v", err)
	}
	if _, err := OpenBatch(nanoPlan(t), out, BatchOptions{}); !errors.Is(err, stage.ErrExists) {
		t.Errorf("in place of a finished one: %v", err)
	}
}

// TestBatchPlace: one process coordinates a batch; a worker knows whether it reaches the same folder; without Resume
// what is there goes.
func TestBatchPlace(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	b, err := OpenBatch(nanoPlan(t), out, BatchOptions{})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := OpenBatch(nanoPlan(t), out, BatchOptions{}); !errors.Is(err, stage.ErrBusy) {
		t.Errorf("a second coordinator: %v", err)
	}
	if err := b.Begin("contract"); err != nil {
		t.Fatal(err)
	}

	joined, err := JoinBatch(nanoPlan(t), b.Dir(), BatchOptions{})
	if err != nil || !joined.SameFolder("contract") || joined.SameFolder("other") {
		t.Errorf("a worker in the same folder: %v", err)
	}
	if elsewhere, err := JoinBatch(nanoPlan(t), t.TempDir(), BatchOptions{}); err != nil ||
		elsewhere.SameFolder("contract") {
		t.Errorf("a worker elsewhere: %v", err)
	}

	for _, u := range []Unit{{-1, 0}, {2, 0}, {0, 2}} {
		if b.Done(u) {
			t.Errorf("%+v is done", u)
		}
		if _, err := b.Run(t.Context(), u, nil); !errors.Is(err, ErrPlan) {
			t.Errorf("%+v: %v", u, err)
		}
	}

	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := OpenBatch(nanoPlan(t), out, BatchOptions{})
	if err != nil || !again.Discarded || again.SameFolder("contract") {
		t.Errorf("begun anew: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSweep: a finished run of which a file is damaged, or gone, is removed, so that it is done again; others stay.
func TestSweep(t *testing.T) {
	for name, harm := range map[string]func(b *Batch, victim string) error{
		"damaged": func(_ *Batch, path string) error { return os.WriteFile(path, []byte("damaged"), 0o666) },
		"gone":    func(_ *Batch, path string) error { return os.Remove(path) },
		"sums": func(b *Batch, _ string) error {
			return os.WriteFile(b.sumsOf(Unit{1, 1}), []byte("{}"), 0o666)
		},
		"": func(*Batch, string) error { return nil },
	} {
		b, err := JoinBatch(&Plan{
			Models: []PlanModel{{Name: "a"}, {Name: "b"}}, Tasks: []string{"x.yaml", "y.yaml"},
		}, t.TempDir(), BatchOptions{})
		if err != nil {
			t.Fatal(err)
		}

		for _, u := range []Unit{{0, 0}, {1, 1}} {
			if err := errors.Join(os.MkdirAll(b.folder(u), 0o777),
				os.WriteFile(filepath.Join(b.folder(u), ResultsFile), []byte("{}"), 0o666), b.seal(u)); err != nil {
				t.Fatal(err)
			}
		}
		if err := harm(b, filepath.Join(b.folder(Unit{1, 1}), ResultsFile)); err != nil {
			t.Fatal(err)
		}

		if err := b.sweep(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(b.folder(Unit{1, 1})); (name == "") != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if !b.Done(Unit{0, 0}) {
			t.Errorf("%s: the other run is gone too", name)
		}
	}
}

// TestPlan: what is wrong with a plan is one line that names the file.
func TestPlan(t *testing.T) {
	for text, want := range map[string]string{
		"models: [m]\n":                                         "it needs models and tasks",
		"models: [a, x/a]\ntasks: [t]\n":                        `"a" of a model is no plain word, or is there twice`,
		"models: [{name: ../x, path: y}]\ntasks: [t]\n":         "is no plain word",
		"models: [queue]\ntasks: [t]\n":                         "is that of a file of the batch",
		"models: [m]\ntasks: ['t*']\n":                          "is a pattern",
		"models: [m]\ntasks: [t, x/t.yaml]\n":                   "is there twice",
		"models: [m]\ntasks: [t]\napply_chat_template: 3\n":     "apply_chat_template is 3",
		"models: [m]\ntasks: [t]\nfewshot_as_multiturn: true\n": "fewshot_as_multiturn needs apply_chat_template",
		"models: [m]\ntasks: [t]\nlimit: many\n":                "plan.yaml:3:8: limit must be a whole number",
	} {
		_, err := ParsePlan("plan.yaml", []byte(text))
		if !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "plan.yaml:") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestPlanChat: which chat template a plan wants.
func TestPlanChat(t *testing.T) {
	for text, want := range map[string]struct {
		name string
		ok   bool
	}{
		"": {}, "apply_chat_template: false\n": {}, "apply_chat_template: ''\n": {},
		"apply_chat_template: true\n": {"", true}, "apply_chat_template: default\n": {"", true},
		"apply_chat_template: tools\n": {"tools", true},
	} {
		p, err := ParsePlan("plan.yaml", []byte("models: [m]\ntasks: [t]\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		if name, ok := p.chats(); name != want.name || ok != want.ok {
			t.Errorf("%q: %q, %v", text, name, ok)
		}
	}
}

// FuzzParsePlan: a plan of several models. Names of models become folders, so none may lead anywhere else.
func FuzzParsePlan(f *testing.F) {
	for _, s := range []string{
		"models: [a, {name: b, model: c}]\ntasks: [t]\n", "models:\n- {name: ../x, model: y}\ntasks: [t]\n",
		"models: !!timestamp 1\n", "a: &a [x, x]\nb: &b [*a, *a]\nmodels: *b\n",
		"models: [a]\ntasks: [t]\nlimit: 1.5\n", "- 1\n", "models: &m [*m]\n", "? {}\n: 1\n", "models: !!binary x\n",
	} {
		f.Add([]byte(s))
	}

	f.Add([]byte(fuzzlimit.Aliases(9) + "models: *a9\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		p, err := ParsePlan("p.yaml", text)
		if err != nil {
			return
		}

		for _, m := range p.Models {
			if !filepath.IsLocal(m.Name) || filepath.Base(m.Name) != m.Name {
				t.Errorf("the folder of %q", m.Name)
			}
		}
	})
}
