package prune

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// compared runs a comparison of a small model and tells which runs were begun, by method.
func compared(t *testing.T, m *lm.Model, methods string, o CompareOptions) (r *Comparison, begun string, err error) {
	t.Helper()
	list, err := Contenders(methods, "2:4", Options{})
	if err != nil {
		t.Fatal(err)
	}

	var names []string
	o.Events.Run = func(i int) { names = append(names, list[i].Method) }
	r, err = Compare(t.Context(), m, windows(3, 9, 61), windows(4, 8, 61), list, o)
	return r, strings.Join(names, " "), err
}

// small is a dense model of one decoder layer.
func small(t *testing.T) *lm.Model {
	t.Helper()
	return load(t, llama(1).write(t, filepath.Join(t.TempDir(), "m"), nil), 1, lm.Options{Stream: true})
}

// TestCompare: every outcome is that of a run of its own, measured on the test windows; the best of a target has no
// test, and the others are tested against it.
func TestCompare(t *testing.T) {
	m, dir := small(t), filepath.Join(t.TempDir(), "out")
	reports := map[string]*Report{}
	o := CompareOptions{Dir: dir, Keep: true, Events: CompareEvents{
		Pruned: func(_ *lm.Model, o Options, _ string, r *Report) error {
			reports[o.Metric.Name] = r
			r.Notes = append(r.Notes, "seen")
			return nil
		},
	}}

	r, begun, err := compared(t, m, "magnitude,pruner-zero,wanda+sparsegpt", o)
	if err != nil || begun != "magnitude pruner-zero wanda+sparsegpt" {
		t.Fatal(begun, err)
	}

	test := windows(4, 8, 61)
	if want := meanLoss(t, m, test); math.Abs(r.Dense.NLL-want) > 1e-12 || r.Dense.Tokens != 28 ||
		r.Dense.Perplexity != math.Exp(r.Dense.NLL) || len(r.Dense.Windows) != 4 {
		t.Errorf("dense: %+v, want a loss of %g", r.Dense, want)
	}

	best := slices.MinFunc(r.Of("2:4"), func(a, b *Outcome) int { return int(math.Copysign(1, a.NLL-b.NLL)) })
	for i, c := range []struct {
		options Options
		folder  string
	}{
		{Options{Metric: Magnitude()}, "2-4-magnitude"},
		{Options{Metric: PrunerZero()}, "2-4-pruner-zero"},
		{Options{Metric: Wanda(), Update: Update{Name: SparseGPTUpdate}}, "2-4-wanda+sparsegpt"},
	} {
		alone, out := filepath.Join(t.TempDir(), "alone"), &r.Runs[i]
		c.options.Pattern = Pattern{2, 4}
		report := prunedTo(t, load(t, m.Path(), 1, lm.Options{}), windows(3, 9, 61), c.options, alone)
		if want := meanLoss(t, load(t, alone, 1, lm.Options{}), test); math.Abs(out.NLL-want) > 1e-12 {
			t.Errorf("%s: loss %g, want %g", out.Method, out.NLL, want)
		}

		if out.Sparsity != report.Total.Sparsity || out.Overall != report.Total.Overall ||
			!cmp.Equal(reports[c.options.Metric.Name].Tensors, report.Tensors) ||
			out.Notes[len(out.Notes)-1] != "seen" {
			t.Errorf("%s: %+v is not what a run of its own gives", out.Method, out)
		}
		if out.Model != filepath.Join(dir, "models", c.folder) ||
			!cmp.Equal(tensorsOf(t, out.Model), tensorsOf(t, alone)) {
			t.Errorf("%s: the model in %s has other weights", out.Method, out.Model)
		}
		if (out.Versus == nil) != (out == best) || out != best && out.Versus.Best != best.Method {
			t.Errorf("%s is tested against %+v, the best is %s", out.Method, out.Versus, best.Method)
		}
	}

	if _, err := os.Stat(filepath.Join(dir, scratchFolder)); err == nil {
		t.Error("the shared gradients stay")
	}
}

// meanLoss is the mean loss of a token, in float64.
func meanLoss(t *testing.T, m *lm.Model, w corpus.Windows) float64 {
	t.Helper()
	r, err := m.Forward(ctx, w.IDs, lm.ForwardOptions{})
	if err != nil {
		t.Fatal(err)
	}

	sum, n := 0.0, 0
	for _, row := range r.LossPerToken {
		for _, v := range row {
			sum += v
			n++
		}
	}
	return sum / float64(n)
}

// TestCompareImpossible: what a method cannot do on this model is a reason beside the figures of the others, with
// nothing in the journal, and an error only if there are no others.
func TestCompareImpossible(t *testing.T) {
	m, dir := small(t), filepath.Join(t.TempDir(), "out")
	r, begun, err := compared(t, m, "expr:(W-W)*W,magnitude", CompareOptions{Dir: dir})
	if err != nil || begun != "expr:(W-W)*W magnitude" || len(r.Runs) != 1 || r.Runs[0].Versus != nil {
		t.Fatalf("%s: %+v, %v", begun, r, err)
	}
	if len(r.Impossible) != 1 || r.Impossible[0].Method != "expr:(W-W)*W" || r.Impossible[0].Target != "2:4" ||
		!strings.Contains(r.Impossible[0].Reason, ErrConstant.Error()) {
		t.Errorf("impossible: %+v", r.Impossible)
	}

	// It is tried again, since another version may be able to.
	r, begun, err = compared(t, m, "expr:(W-W)*W,magnitude", CompareOptions{Dir: dir, Resume: true})
	if err != nil || begun != "expr:(W-W)*W" || r.Resumed != 1 || len(r.Impossible) != 1 {
		t.Errorf("resumed: %s: %+v, %v", begun, r, err)
	}

	alone := CompareOptions{Dir: dir, Overwrite: true}
	if _, _, err := compared(t, m, "expr:(W-W)*W,expr:W-W", alone); !errors.Is(err, ErrConstant) ||
		!strings.Contains(err.Error(), "2:4, expr:(W-W)*W: ") || !strings.Contains(err.Error(), "2:4, expr:W-W: ") {
		t.Errorf("none is possible: %v", err)
	}
}

// TestCompareResumes: what the journal has is not run again, with other contenders before and behind it; a broken run
// keeps what was done before; other data are another comparison; and a folder with other things in it is not touched.
func TestCompareResumes(t *testing.T) {
	m, dir := small(t), filepath.Join(t.TempDir(), "out")
	fresh := CompareOptions{Dir: dir}
	resumed := CompareOptions{Dir: dir, Resume: true}

	errBroken := errors.New("broken")
	broken := fresh
	broken.Events.Pruned = func(_ *lm.Model, o Options, _ string, _ *Report) error {
		if o.Metric.Name == "magnitude" {
			return nil
		}
		return errBroken
	}
	if _, begun, err := compared(t, m, "magnitude,expr:W*W*W*W,wanda", broken); !errors.Is(err, errBroken) ||
		!strings.HasPrefix(err.Error(), "2:4, expr:W*W*W*W: ") || begun != "magnitude expr:W*W*W*W" {
		t.Fatalf("a broken run: %s, %v", begun, err)
	}
	if _, _, err := compared(t, m, "magnitude", fresh); !errors.Is(err, stage.ErrExists) {
		t.Errorf("again without resuming: %v", err)
	}

	r, begun, err := compared(t, m, "wanda,magnitude,expr:W*W*W*W", resumed)
	if err != nil || begun != "wanda expr:W*W*W*W" || r.Resumed != 1 || len(r.Runs) != 3 ||
		r.Runs[1].Method != "magnitude" {
		t.Errorf("%s: %+v, %v", begun, r, err)
	}
	if _, err := os.Stat(filepath.Join(dir, modelsFolder)); err == nil {
		t.Error("the folder of models stays")
	}

	list, err := Contenders("magnitude", "2:4", Options{})
	if err != nil {
		t.Fatal(err)
	}
	other := windows(2, 8, 61)
	if _, err := Compare(ctx, m, corpus.Windows{}, other, list, resumed); !errors.Is(err, ErrOtherComparison) {
		t.Errorf("other data: %v", err)
	}

	// What a killed process was writing is part of the comparison.
	half := filepath.Join(dir, safefile.Unfinished("report.json"))
	if err := os.WriteFile(half, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := resumed.Check(m.Path()); err != nil {
		t.Errorf("killed while its report was written: %v", err)
	}

	if _, begun, err := compared(t, m, "magnitude", CompareOptions{Dir: dir, Overwrite: true}); err != nil ||
		begun != "magnitude" {
		t.Errorf("starting over: %s, %v", begun, err)
	}
	if _, err := os.Stat(half); err == nil {
		t.Error("half a report stays")
	}

	if err := os.WriteFile(filepath.Join(dir, "mine.txt"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, o := range []CompareOptions{resumed, {Dir: dir, Overwrite: true}} {
		if err := o.Check(m.Path()); !errors.Is(err, stage.ErrTarget) {
			t.Errorf("a folder with something else: %v", err)
		}
	}
	if err := (CompareOptions{Dir: m.Path(), Overwrite: true}).Check(m.Path()); !errors.Is(err, stage.ErrInPlace) {
		t.Errorf("the folder of the model: %v", err)
	}
}

// TestCompareInterrupted: an interrupted run is gone on with, to the outcome of one that was left alone.
func TestCompareInterrupted(t *testing.T) {
	m := load(t, llama(3).write(t, filepath.Join(t.TempDir(), "m"), nil), 1, lm.Options{Stream: true})
	list, err := Contenders("sparsegpt", "0.5", Options{})
	if err != nil {
		t.Fatal(err)
	}

	run := func(ctx context.Context, o CompareOptions) (*Comparison, error) {
		return Compare(ctx, m, windows(3, 9, 61), windows(4, 8, 61), list, o)
	}
	whole, err := run(ctx, CompareOptions{Dir: filepath.Join(t.TempDir(), "whole")})
	if err != nil {
		t.Fatal(err)
	}

	o := CompareOptions{Dir: filepath.Join(t.TempDir(), "out")}
	stop, cancel := context.WithCancel(ctx)
	o.Events.Step = func(s Step) {
		if s.Block == 2 {
			cancel()
		}
	}
	if _, err := run(stop, o); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}

	restored := int64(0)
	o.Resume = true
	o.Events = CompareEvents{Pruned: func(_ *lm.Model, _ Options, _ string, r *Report) error {
		restored = int64(r.Total.Restored)
		return nil
	}}

	r, err := run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if restored != 14 || !cmp.Equal(r.Runs[0].HeldOut, whole.Runs[0].HeldOut) {
		t.Errorf("%d matrices were taken over, %+v, want %+v", restored, r.Runs[0].HeldOut, whole.Runs[0].HeldOut)
	}
}

// TestKeptModels: a kept model of which a file has changed, been cut or lost since is made again, and one that
// is as it was is not.
func TestKeptModels(t *testing.T) {
	m, dir := small(t), filepath.Join(t.TempDir(), "out")
	var said []string
	again := func() string {
		t.Helper()
		said = nil
		o := CompareOptions{Dir: dir, Keep: true, Resume: true}
		o.Events.Note = func(text string) { said = append(said, text) }
		_, begun, err := compared(t, m, "magnitude,expr:abs(W)", o)
		if err != nil {
			t.Fatal(err)
		}
		return begun
	}

	if got := again(); got != "magnitude expr:abs(W)" {
		t.Fatal(got)
	}
	if got := again(); got != "" {
		t.Error("made again without need:", got)
	}

	entries, err := os.ReadDir(filepath.Join(dir, modelsFolder))
	if err != nil || len(entries) != 2 || !strings.HasPrefix(entries[0].Name(), "2-4-expr-abs_W_-") {
		t.Fatal(entries, err)
	}

	folder := filepath.Join(dir, modelsFolder, entries[0].Name())
	files, err := os.ReadDir(folder)
	if err != nil || len(files) != 3 {
		t.Fatalf("%v, %v; want configuration, weights and record", files, err)
	}

	for _, f := range files {
		path := filepath.Join(folder, f.Name())
		for _, damage := range []func() error{
			func() error { return flipLast(path) },
			func() error { return os.Truncate(path, 3) },
			func() error { return os.Remove(path) },
		} {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			note := path + ": " + errChanged.Error() + ": it is made again"
			if got := again(); got != "expr:abs(W)" || !slices.Contains(said, note) {
				t.Errorf("%s: %q, %q", f.Name(), got, said)
			}
		}
	}
}

// flipLast changes a bit of a file's last byte.
func flipLast(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text[len(text)-1] ^= 4
	return os.WriteFile(path, text, 0o600)
}
