package edit

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
)

// folderOf is what a folder holds, by name.
func folderOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	files := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(text)
	}

	return files
}

// applied edits the shipped model into a folder.
func applied(t *testing.T, ctx context.Context, set *Set, o FolderOptions) (*FolderReport, error) {
	t.Helper()
	m, err := lm.Load(t.Context(), nano+"/base", cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	return ApplyFolder(ctx, m, set, o)
}

func firstEdits(t *testing.T, n int) *Set {
	t.Helper()
	set, err := ReadSome(nano+"/edits.json", ReadOptions{Count: n})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// quick are options that take few steps.
func quick(t *testing.T, method, out string) FolderOptions {
	t.Helper()
	hp, err := Defaults(method, &lm.Config{Layers: 4, Hidden: 64})
	if err != nil {
		t.Fatal(err)
	}
	hp.Steps = 4
	return FolderOptions{Options: Options{Method: method, HParams: &hp}, Batch: 1, Out: out}
}

// TestFolderResumes: a run that is interrupted after any edit leaves a log, is refused without Resume, and with it ends
// in the same files; a run that was finished is known, and one that has been damaged since is refused.
func TestFolderResumes(t *testing.T) {
	dir := t.TempDir()
	set := firstEdits(t, 3)
	whole := quick(t, "ft", filepath.Join(dir, "whole"))
	if _, err := applied(t, t.Context(), set, whole); err != nil {
		t.Fatal(err)
	}
	want := folderOf(t, whole.Out)

	o := quick(t, "ft", filepath.Join(dir, "out"))
	for _, after := range []int64{1, 2} {
		ctx, cancel := context.WithCancel(t.Context())
		o.Progress = func(stage string, done, _ int64) {
			if stage == "editing" && done == after {
				cancel()
			}
		}
		if _, err := applied(t, ctx, set, o); !errors.Is(err, context.Canceled) {
			t.Fatalf("interrupted: %v", err)
		}

		o.Resume = false
		o.Progress = nil
		if _, err := applied(t, t.Context(), set, o); !errors.Is(err, ErrUnfinished) || !failure.IsUsage(err) {
			t.Errorf("without Resume: %v", err)
		}
		o.Resume = true
	}

	other := o
	other.Seed = 1
	if _, err := applied(t, t.Context(), set, other); !errors.Is(err, ErrOtherJob) {
		t.Errorf("with another seed: %v", err)
	}

	var notes []string
	o.Note = func(text string) { notes = append(notes, text) }
	r, err := applied(t, t.Context(), set, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Finished || len(r.Steps) != 3 || !slices.Contains(notes, "2 of 3 edits were made before") {
		t.Errorf("resumed: %+v, %q", r.Steps, notes)
	}
	if got := folderOf(t, o.Out); !maps.Equal(got, want) {
		t.Error("the folder differs from that of a run without interruption")
	}
	if _, err := os.Lstat(LogPath(o.Out)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the log is still there: %v", err)
	}

	if r, err = applied(t, t.Context(), set, o); err != nil || !r.Finished {
		t.Errorf("finished: %+v, %v", r, err)
	}
	if _, err := applied(t, t.Context(), set, other); !errors.Is(err, stage.ErrExists) {
		t.Errorf("another run in its place: %v", err)
	}

	config := filepath.Join(o.Out, "config.json")
	if err := os.WriteFile(config, []byte(want["config.json"]+" "), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := applied(t, t.Context(), set, o); !errors.Is(err, ErrFinished) || !errors.Is(err, lm.ErrDamaged) {
		t.Errorf("damaged since: %v", err)
	}
}

// TestFolderUndo: every earlier state comes back byte for byte, and what is no state of the journal is refused.
func TestFolderUndo(t *testing.T) {
	dir := t.TempDir()
	dev := cpu.New(cpu.Options{})
	var states []map[string]string
	for n := 1; n <= 3; n++ {
		o := quick(t, "ft", filepath.Join(dir, strings.Repeat("x", n)))
		if _, err := applied(t, t.Context(), firstEdits(t, n), o); err != nil {
			t.Fatal(err)
		}
		states = append(states, folderOf(t, o.Out))
	}

	out := filepath.Join(dir, "xxx")
	for _, bad := range []int{-1, 4} {
		_, err := UndoFolder(t.Context(), out, dev, bad)
		if !errors.Is(err, ErrSteps) || strings.Contains(err.Error(), "hyper") ||
			failure.Hint(err) != "--to takes 0 to 3" {
			t.Errorf("to %d: %v", bad, err)
		}
	}

	for to := 2; to >= 1; to-- {
		r, err := UndoFolder(t.Context(), out, dev, to)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Removed) != 1 || len(r.Tensors) != 1 {
			t.Errorf("to %d: %+v", to, r)
		}

		got := folderOf(t, out)
		if got["model.safetensors"] != states[to-1]["model.safetensors"] {
			t.Errorf("to %d: the weights are not those after %d edits", to, to)
		}
		if v, err := VerifyFolder(t.Context(), out, nano+"/base", dev); err != nil || v.Steps != to {
			t.Errorf("to %d: %+v, %v", to, v, err)
		}
	}

	// An edit that is neither in the journal nor the base's.
	weights := []byte(states[0]["model.safetensors"])
	weights[len(weights)-1] ^= 1
	if err := os.WriteFile(filepath.Join(out, "model.safetensors"), weights, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyFolder(t.Context(), out, nano+"/base", dev); !errors.Is(err, ErrDiffers) &&
		!errors.Is(err, ErrJournal) {
		t.Errorf("a flipped bit: %v", err)
	}
	if _, err := UndoFolder(t.Context(), out, dev, 0); !errors.Is(err, ErrOriginal) && !errors.Is(err, ErrJournal) {
		t.Errorf("undone with a flipped bit: %v", err)
	}
}

// TestFolderOptions: what is wrong by itself is found without a model.
func TestFolderOptions(t *testing.T) {
	fine := quick(t, "ft", filepath.Join(t.TempDir(), "out"))
	if err := fine.Check(nano + "/base"); err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		change func(o *FolderOptions)
		want   error
	}{
		"output":   {func(o *FolderOptions) { o.Out = "" }, ErrOptions},
		"batch":    {func(o *FolderOptions) { o.Batch = -1 }, ErrOptions},
		"texts":    {func(o *FolderOptions) { o.Texts = -1 }, ErrOptions},
		"tokens":   {func(o *FolderOptions) { o.StatsTokens = -1 }, ErrOptions},
		"one fact": {func(o *FolderOptions) { o.Method, o.Batch = "rome", 2 }, ErrOptions},
		"method":   {func(o *FolderOptions) { o.Method = "knn" }, ErrMethod},
		"source":   {func(o *FolderOptions) { o.Out = nano + "/base" }, stage.ErrInPlace},
		"occupied": {func(o *FolderOptions) { o.Out = nano + "/sums" }, stage.ErrExists},
	} {
		o := fine
		c.change(&o)
		if err := o.Check(nano + "/base"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFolderStatistics: the covariance comes from a text, records of JSONL, or the prompts of the edits, never from
// more tokens than asked for, and a bad line is named.
func TestFolderStatistics(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}

	set := firstEdits(t, 1)
	for name, c := range map[string]struct {
		stats  string
		tokens int
		most   int // tokens
		fault  string
	}{
		"prompts":    {"", 0, 1 << 20, ""},
		"few":        {"", 40, 40, ""},
		"text":       {nano + "/text/test.txt", 600, 600, ""},
		"short text": {write("short.txt", "a few words"), 0, 11, ""},
		"records":    {write("a.jsonl", "\"one line\"\n\n{\"text\":\"another\"}\n"), 12, 12, ""},
		"bad line":   {write("b.jsonl", "\"fine\"\n{\"no\":1}\n"), 0, 0, "b.jsonl: line 2: bad record"},
		"no line":    {write("c.jsonl", "\n"), 0, 0, "c.jsonl: "},
	} {
		o := quick(t, "memit", filepath.Join(dir, "out"))
		o.Batch = 0
		o.Stats = c.stats
		o.StatsTokens = c.tokens
		o.Overwrite = true
		r, err := applied(t, t.Context(), set, o)
		switch {
		case c.fault != "":
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case r.Statistics.Tokens < 1 || r.Statistics.Tokens > c.most || r.Statistics.Data == "":
			t.Errorf("%s: %+v", name, r.Statistics)
		}
	}
}

// TestNothingEdited: where every optimisation diverges nothing is written, and nothing is left behind.
func TestNothingEdited(t *testing.T) {
	dir := t.TempDir()
	o := quick(t, "ft", filepath.Join(dir, "out"))
	o.HParams.LearningRate = 1e9
	if _, err := applied(t, t.Context(), firstEdits(t, 1), o); !errors.Is(err, ErrNothing) {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestFolderOverwrites: an earlier output of edits is replaced where that is asked for, but not with other files in it.
func TestFolderOverwrites(t *testing.T) {
	dir := t.TempDir()
	o := quick(t, "ft", filepath.Join(dir, "out"))
	if _, err := applied(t, t.Context(), firstEdits(t, 1), o); err != nil {
		t.Fatal(err)
	}
	one := folderOf(t, o.Out)

	o.Overwrite = true
	if _, err := applied(t, t.Context(), firstEdits(t, 2), o); err != nil {
		t.Fatal(err)
	}
	if two := folderOf(t, o.Out); two[JournalName] == one[JournalName] {
		t.Error("it was not replaced")
	}

	if err := os.WriteFile(filepath.Join(o.Out, "thesis.tex"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := applied(t, t.Context(), firstEdits(t, 1), o); !errors.Is(err, stage.ErrTarget) {
		t.Errorf("with another file: %v", err)
	}
}

// TestCollapsed: next to no agreement at a large drift, or a drift beyond that of a model that knows nothing.
func TestCollapsed(t *testing.T) {
	for _, c := range []struct {
		drift Drift
		want  bool
	}{
		{Drift{Prompts: 0, KL: 99}, false},
		{Drift{Prompts: 10, KL: 0.5, Agreement: 0}, false},
		{Drift{Prompts: 10, KL: 1, Agreement: 0.05}, true},
		{Drift{Prompts: 10, KL: 6, Agreement: 0.1}, false},
		{Drift{Prompts: 10, KL: 7, Agreement: 0.9}, true},
	} {
		r := &FolderReport{Drift: &c.drift, vocab: 1000} // ln 1000 = 6.9
		if r.Collapsed() != c.want {
			t.Errorf("%+v: %v", c.drift, !c.want)
		}
	}
	if (&FolderReport{}).Collapsed() {
		t.Error("nothing was measured")
	}
}

// TestPromptTexts: every prompt of a record once, in order.
func TestPromptTexts(t *testing.T) {
	r := Record{
		Prompt: "{} is in", Subject: "Rome", True: "Italy", Near: []string{"Milan is in", "Milan is in"},
		Far: []Question{{"2 + 2 =", "4"}}, Rephrase: []string{"Where is Rome?"},
	}
	got := strings.Join(PromptTexts([]Record{r, r}), "|")
	if got != "2 + 2 = 4|Milan is in Italy|Rome is in Italy|Where is Rome?" {
		t.Error(got)
	}
	if n := bytes.Count([]byte(got), []byte("|")); n != 3 {
		t.Error(n)
	}
}
