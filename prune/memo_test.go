package prune

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/lm"
)

// TestMemo: runs that share measurements report and prune what runs of their own do; the dense model runs once
// for them.
func TestMemo(t *testing.T) {
	dir := llama(3).write(t, filepath.Join(t.TempDir(), "m"), nil)
	run := func(o Options, allocated *int) (*Report, string) {
		m := load(t, dir, 1, lm.Options{})
		o.Events.Step = func(s Step) {
			if s.Stage == Allocate {
				*allocated++
			}
		}

		r, err := Model(ctx, m, windows(3, 9, 61), o)
		if err != nil {
			t.Fatal(err)
		}

		w, err := m.Param("model.layers.2.mlp.up_proj.weight")
		if err != nil {
			t.Fatal(err)
		}

		return r, string(w.Buf.Bytes())
	}

	for _, a := range []Allocation{{Name: OWL}, {Name: Alpha}, {Name: Alpha, Estimator: Hill}, {Name: OWL, M: 3}} {
		memo := &Memo{}
		for i, sparsity := range []float64{.5, .7} {
			alone, shared := 0, 0
			want, weights := run(Options{Sparsity: sparsity, Allocation: a}, &alone)
			got, same := run(Options{Sparsity: sparsity, Allocation: a, Memo: memo}, &shared)
			if diff := cmp.Diff(want.Blocks, got.Blocks); diff != "" || weights != same {
				t.Errorf("%+v at %g: %s", a, sparsity, diff)
			}
			if alone == 0 || shared != alone*(1-i) {
				t.Errorf("%+v at %g: %d steps of the allocation alone, %d with a memo", a, sparsity, alone, shared)
			}
		}
	}
}
