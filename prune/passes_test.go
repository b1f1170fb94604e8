package prune

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/lm"
)

// passed prunes a model and gives the report, all weights of the blocks, and how often a block was measured.
func passed(t *testing.T, dir string, o Options) (r *Report, weights string, measured int) {
	t.Helper()
	m := load(t, dir, 1, lm.Options{})
	o.Events.Step = func(s Step) {
		if s.Stage == Statistics && s.Block == 1 && s.Done == 0 {
			measured++
		}
	}

	r, err := Model(ctx, m, windows(3, 9, 61), o)
	if err != nil {
		t.Fatal(err)
	}

	for b := range m.Blocks() {
		for _, l := range m.Linears(b) {
			w, err := m.Param(l.Name)
			if err != nil {
				t.Fatal(err)
			}
			weights += string(w.Buf.Bytes())
		}
	}

	return r, weights, measured
}

// TestHessianMemory: with less memory for Hessians a block is run several times, to the same weights and the
// same report.
func TestHessianMemory(t *testing.T) {
	for name, c := range map[string]*checkpoint{"llama": llama(3), "gpt2": gpt2(), "mixtral": mixtral()} {
		dir := c.write(t, filepath.Join(t.TempDir(), name), nil)
		for _, o := range []Options{
			{Metric: SparseGPT(), Sparsity: .5},
			{Metric: Wanda(), Pattern: Pattern{2, 4}, Update: Update{Name: ADMM}},
			{Metric: Wanda(), Sparsity: .5, Swaps: 2, Update: Update{Name: Exact}},
		} {
			want, weights, once := passed(t, dir, o)
			o.HessianMemory = 1
			got, same, times := passed(t, dir, o)
			if weights != same {
				t.Errorf("%s, %s: other weights", name, o.Metric.Name)
			}
			if diff := cmp.Diff(want.Tensors, got.Tensors); diff != "" {
				t.Errorf("%s, %s: %s", name, o.Metric.Name, diff)
			}
			if once != 1 || times < 4 {
				t.Errorf("%s, %s: measured %d and %d times", name, o.Metric.Name, once, times)
			}
		}
	}
}

// TestTrueSequential: matrices see what those before them in the block have become. Where nothing is pruned
// before a matrix it is the same either way, and where all that comes before is dense.
func TestTrueSequential(t *testing.T) {
	dir := llama(2).write(t, filepath.Join(t.TempDir(), "m"), nil)
	o := Options{Metric: SparseGPT(), Sparsity: .6}
	_, block, _ := passed(t, dir, o)
	o.TrueSequential = true
	r, refreshed, times := passed(t, dir, o)
	if block == refreshed || times != 4 {
		t.Errorf("measured %d times, the same weights: %v", times, block == refreshed)
	}
	if got, want := r.Tensors[0].Name, "model.layers.0.self_attn.q_proj.weight"; got != want {
		t.Errorf("the report begins with %s, want %s", got, want)
	}

	dense := Override{Roles: []string{"q", "k", "v", "o", "gate", "up"}, Dense: true}
	o = Options{Metric: SparseGPT(), Sparsity: .6, Overrides: []Override{dense}}
	_, block, _ = passed(t, dir, o)
	o.TrueSequential = true
	if _, refreshed, _ = passed(t, dir, o); block != refreshed {
		t.Error("with dense matrices before it, the last one is another")
	}
}

// TestGuard: an update that raises the error of a matrix's outputs is noted, and with a guard it is undone
// there and nowhere else.
func TestGuard(t *testing.T) {
	dir := llama(2).write(t, filepath.Join(t.TempDir(), "m"), nil)
	o := Options{Sparsity: .6, Update: Update{Name: DSnoT, MLP: true}}
	free, _, _ := passed(t, dir, o)
	o.Update.Guard = true

	guarded, _, _ := passed(t, dir, o)
	worse, undone := 0, 0
	for i, x := range free.Tensors[:7] { // later blocks have other inputs
		y := guarded.Tensors[i]
		if x.Change == nil || y.Change == nil || y.Change.Masked != x.Change.Masked {
			t.Fatalf("%s: %+v, %+v", x.Name, x.Change, y.Change)
		}
		if x.Change.Updated > x.Change.Masked {
			worse++
		}
		if y.Undone {
			undone++
		}

		if y.Change.Updated > y.Change.Masked || y.Undone != (x.Change.Updated > x.Change.Masked) ||
			y.Undone != (y.Swaps == 0 && x.Swaps > 0) || x.Zeros != y.Zeros {
			t.Errorf("%s: %+v, guarded %+v", x.Name, x, y)
		}
	}

	if worse == 0 || worse != undone {
		t.Errorf("%d matrices are worse, %d are undone", worse, undone)
	}

	if notes := strings.Join(free.Notes, " "); !strings.Contains(notes,
		"update dsnot raised the error of the outputs of the matrices of ") {
		t.Error(notes)
	}

	if notes := strings.Join(guarded.Notes, " "); !strings.Contains(notes, "the guard left ") {
		t.Error(notes)
	}
	if err := (Options{Sparsity: .5, Update: Update{Guard: true}}).Validate(); !errors.Is(err, ErrOptions) {
		t.Errorf("a guard without an update: %v", err)
	}
}
